package admission

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// inputCost and outputCost are the costs of an uncached prompt token and of an output token.
	inputCost, outputCost = 1, 2
	// halfLife is the time in which attained service loses half of its weight.
	halfLife = time.Minute
	// leastShare is the part of the capacity that a class keeps while higher classes wait.
	leastShare = 0.05
)

// account is the service that one key has attained in one class of one queue. Requests that need not wait use
// only its atomic fields.
type account struct {
	name    string
	class   Class
	fresh   atomic.Int64 // cost not yet in service; negative after a request that used less than estimated
	running atomic.Int64 // requests that were dispatched and have not ended

	// The queue's lock guards the fields below.
	service float64 // as of at, without fresh
	others  float64 // as published by other proxies
	at      time.Time
	waiting []*Request // in the order of byDeadline
	cost    float64    // of waiting
}

// fold decays service until now, and adds fresh to it.
func (a *account) fold(now time.Time) {
	if passed := now.Sub(a.at); passed > 0 {
		a.service *= math.Exp2(-float64(passed) / float64(halfLife))
		a.at = now
	}
	a.service = max(0, a.service+float64(a.fresh.Swap(0)))
}

// attained returns the service in all proxies. The account must be folded.
func (a *account) attained() float64 { return a.service + a.others }

// number returns the number of the waiting requests.
func (a *account) number() int64 { return int64(len(a.waiting)) }

// bytes returns the bytes of the waiting requests.
func (a *account) bytes() (sum int64) {
	for _, r := range a.waiting {
		sum += r.Bytes
	}
	return sum
}

// newest returns the newest of the waiting requests.
func (a *account) newest() *Request {
	return slices.MaxFunc(a.waiting, func(b, c *Request) int { return cmp.Compare(b.seq, c.seq) })
}

func (a *account) active() bool { return len(a.waiting) > 0 || a.running.Load() > 0 }

// byDeadline compares requests: the earliest deadline first, then the earliest arrival.
func byDeadline(a, b *Request) int {
	return cmp.Or(a.deadline.Compare(b.deadline), cmp.Compare(a.seq, b.seq))
}

// order has the waiting requests of a queue. The zero value is empty. The queue's lock guards it.
type order struct {
	accounts [classes][]*account // all, including those without waiting requests
	length   [classes]int
	cost     [classes]float64
	credit   [classes]float64 // saved part of each class's least share
	bytes    [classes]int64
	seq      uint64
}

func (o *order) len() int {
	n, _ := o.upTo(classes - 1)
	return n
}

// upTo returns the number and the bytes of the requests of a class and of all that are higher.
func (o *order) upTo(c Class) (n int, bytes int64) {
	for i := range c + 1 {
		n, bytes = n+o.length[i], bytes+o.bytes[i]
	}
	return n, bytes
}

// add makes a request wait. A key that becomes active starts at the smallest attained service of the
// active keys of its class.
func (o *order) add(r *Request, now time.Time) {
	a := r.account
	a.fold(now)
	if !a.active() && a.others < minAttained { // else it may be active in another proxy
		o.start(a, now)
	}
	o.seq++
	r.seq = o.seq
	at, _ := slices.BinarySearchFunc(a.waiting, r, byDeadline)
	a.waiting = slices.Insert(a.waiting, at, r)
	o.account(r, 1)
}

// start raises the attained service of a key to the smallest of the active keys of its class.
func (o *order) start(a *account, now time.Time) {
	least := math.Inf(1)
	for _, b := range o.accounts[a.class] {
		if b != a && b.active() {
			b.fold(now)
			least = min(least, b.attained())
		}
	}
	if !math.IsInf(least, 1) {
		a.service = max(a.service, least-a.others)
	}
}

// account adds a request to the sums, or removes it if sign is -1.
func (o *order) account(r *Request, sign int) {
	c := r.account.class
	o.length[c] += sign
	o.bytes[c] += int64(sign) * r.Bytes
	if o.length[c] == 0 {
		o.cost[c], o.credit[c] = 0, 0
	} else {
		o.cost[c] += float64(sign) * r.cost
	}
	if r.account.cost += float64(sign) * r.cost; len(r.account.waiting) == 0 {
		r.account.cost = 0
	}
}

// remove removes a waiting request.
func (o *order) remove(r *Request) {
	at, _ := slices.BinarySearchFunc(r.account.waiting, r, byDeadline)
	r.account.waiting = slices.Delete(r.account.waiting, at, at+1)
	o.account(r, -1)
}

// next returns the request to dispatch next: of the lowest class that has saved enough of its least share,
// else of the highest class. Within the class, it is of the key with the least attained service. It is nil if
// none waits.
func (o *order) next(now time.Time) *Request {
	var first *Request
	for c := classes; c > 0; c-- {
		if o.length[c-1] == 0 {
			continue
		}
		r := o.head(c-1, now)
		if o.credit[c-1] >= r.cost && o.higher(c-1) {
			return r
		}
		first = r
	}
	return first
}

// higher reports whether a request of a higher class waits.
func (o *order) higher(c Class) bool {
	return slices.ContainsFunc(o.length[:c], func(n int) bool { return n > 0 })
}

// serves reports whether requests of these classes have been dispatched and have not ended.
func (o *order) serves(of ...Class) bool {
	return slices.ContainsFunc(of, func(c Class) bool {
		return slices.ContainsFunc(o.accounts[c], func(a *account) bool { return a.running.Load() > 0 })
	})
}

// head returns the first request of a class.
func (o *order) head(c Class, now time.Time) *Request {
	var best *account
	for _, a := range o.accounts[c] {
		if len(a.waiting) == 0 {
			continue
		}
		a.fold(now)
		if best == nil || a.attained() < best.attained() || a.attained() == best.attained() && a.waiting[0].seq < best.waiting[0].seq {
			best = a
		}
	}
	return best.waiting[0]
}

// dispatch removes a request that is dispatched. Lower classes with waiting requests save a part of its cost.
func (o *order) dispatch(r *Request) {
	c := r.account.class
	for low := c + 1; low < classes; low++ {
		if o.length[low] > 0 {
			o.credit[low] += leastShare / (1 - leastShare) * r.cost
		}
	}
	if o.higher(c) {
		o.credit[c] = max(0, o.credit[c]-r.cost)
	}
	o.remove(r)
}

// largest returns the account of a class with the most waiting requests, measured by size; of equal ones that
// of the newest request. It is nil if none waits.
func (o *order) largest(c Class, size func(*account) int64) (most *account) {
	for _, a := range o.accounts[c] {
		if len(a.waiting) == 0 {
			continue
		}
		if most == nil || size(a) > size(most) || size(a) == size(most) && a.newest().seq > most.newest().seq {
			most = a
		}
	}
	return most
}

// newest returns the newest request of the largest account in the lowest class with waiting requests; nil if
// none waits.
func (o *order) newest(size func(*account) int64) *Request {
	for c := classes; c > 0; c-- {
		if a := o.largest(c-1, size); a != nil {
			return a.newest()
		}
	}
	return nil
}

// overdue returns the requests whose deadlines have passed.
func (o *order) overdue(now time.Time) (list []*Request) {
	for _, accounts := range o.accounts {
		for _, a := range accounts {
			for _, r := range a.waiting {
				if r.deadline.After(now) {
					break
				}
				list = append(list, r)
			}
		}
	}
	return list
}

// ahead estimates the cost dispatched before a request that would arrive now. It includes all requests of
// higher classes and, in its class, at most as much of every other key as of its own. It is at most the total
// cost until the least share of its class has served those of its class.
func (o *order) ahead(a *account, cost float64) float64 {
	own, sum := a.cost+cost, a.cost
	for _, b := range o.accounts[a.class] {
		if b != a && len(b.waiting) > 0 {
			sum += min(b.cost, own)
		}
	}
	higher := 0.0
	for c := range a.class {
		higher += o.cost[c]
	}
	return min(sum+higher, sum/leastShare+cost)
}

// Class is the priority of a request. Lower values go first.
type Class uint8

// The classes.
const (
	Interactive Class = iota
	Default
	Batch
	classes
)

// Classes returns all classes, the highest priority first.
func Classes() []Class { return []Class{Interactive, Default, Batch} }

// String returns the name of the class, as in the header X-Priority.
func (c Class) String() string { return [...]string{"interactive", "default", "batch"}[c] }

// EnginePriority returns vLLM's priority for the class as JSON, where lower values go first; "" is vLLM's
// default, 0.
func (c Class) EnginePriority() string { return [...]string{"-1", "", "1"}[c] }

// ParseClass returns the class of a name.
func ParseClass(name string) (c Class, ok bool) {
	for _, c := range Classes() {
		if c.String() == name {
			return c, true
		}
	}
	return Default, false
}
