package admission

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

const epsilon = 1e-9

// model checks every dispatch of an order against the rules, applied to a plain list.
type model struct {
	order
	accounts map[accountKey]*account
	waiting  []*Request
	now      time.Time
}

func newModel() *model { return &model{accounts: map[accountKey]*account{}, now: time.Unix(1e9, 0)} }

func (m *model) arrive(c Class, key string, cost float64, deadline int) {
	k := accountKey{key, c}
	a := m.accounts[k]
	if a == nil {
		a = &account{name: key, class: c, at: m.now}
		m.accounts[k] = a
		m.order.accounts[c] = append(m.order.accounts[c], a)
	}
	r := &Request{Class: c, Key: key, Bytes: 1, account: a, cost: cost, deadline: m.now.Add(time.Duration(deadline))}
	m.add(r, m.now)
	m.waiting = append(m.waiting, r)
}

// dispatchOne dispatches the next request, and returns the violated rule, "" if none.
func (m *model) dispatchOne() string {
	r := m.next(m.now)
	if len(m.waiting) == 0 {
		if r != nil {
			return "an empty queue has a next request"
		}
		return ""
	}
	if !slices.Contains(m.waiting, r) {
		return "the next request does not wait"
	}
	for _, w := range m.waiting {
		switch {
		case w.Class < r.Class && m.credit[r.Class] < r.cost:
			return "a lower class goes first, without a claim to its least share"
		case w.Class == r.Class && w.account.attained() < r.account.attained()-epsilon:
			return "a key with more service goes first"
		case w.account == r.account && (w.deadline.Before(r.deadline) || w.deadline.Equal(r.deadline) && w.seq < r.seq):
			return "a later request of the key goes first"
		}
	}
	m.dispatch(r)
	r.account.fresh.Add(int64(r.cost))
	m.drop(r)
	return m.sums()
}

func (m *model) drop(r *Request) {
	m.waiting = slices.DeleteFunc(m.waiting, func(w *Request) bool { return w == r })
}

// sums compares the sums of the order with those of the list.
func (m *model) sums() string {
	var length [classes]int
	var cost [classes]float64
	for _, w := range m.waiting {
		length[w.Class]++
		cost[w.Class] += w.cost
	}
	for c := range classes {
		if length[c] != m.length[c] || math.Abs(cost[c]-m.cost[c]) > epsilon || m.credit[c] < 0 {
			return fmt.Sprintf("%s: %d with cost %v, want %d with %v; credit %v", c, m.length[c], m.cost[c], length[c], cost[c], m.credit[c])
		}
	}
	if n, bytes := m.upTo(classes - 1); bytes != int64(len(m.waiting)) || n != len(m.waiting) || m.bytes[Batch] != int64(length[Batch]) {
		return "the bytes are wrong"
	}
	return ""
}

// Every short sequence of arrivals, dispatches and departures obeys the rules.
func TestOrder_Exhaustive(t *testing.T) {
	t.Parallel()
	type step struct {
		name string
		do   func(m *model) string
	}
	steps := []step{{"dispatch", (*model).dispatchOne}, {"leave", func(m *model) string {
		if r := m.newest((*account).number); r != nil {
			n := map[*account]int{}
			for _, w := range m.waiting {
				n[w.account]++
			}
			for _, w := range m.waiting {
				if w.Class > r.Class || w.Class == r.Class && (n[w.account] > n[r.account] || n[w.account] == n[r.account] && w.seq > r.seq) {
					return "it is not the newest of the largest key in the lowest class"
				}
			}
			m.remove(r)
			m.drop(r)
		}
		return m.sums()
	}}}
	for _, c := range []Class{Interactive, Batch} {
		for _, key := range []string{"a", "b"} {
			for _, deadline := range []int{1, 2} {
				cost := float64(10 * deadline)
				steps = append(steps, step{fmt.Sprint(c, key, deadline), func(m *model) string {
					m.arrive(c, key, cost, deadline)
					return m.sums()
				}})
			}
		}
	}
	const length = 5
	total := int(math.Pow(float64(len(steps)), length))
	for n := range total {
		m, names := newModel(), []string{}
		for left, i := n, 0; i < length; i, left = i+1, left/len(steps) {
			s := steps[left%len(steps)]
			names = append(names, s.name)
			if problem := s.do(m); problem != "" {
				t.Fatalf("%v: %s", names, problem)
			}
		}
		for len(m.waiting) > 0 {
			if problem := m.dispatchOne(); problem != "" {
				t.Fatalf("%v, then dispatched: %s", names, problem)
			}
		}
	}
}

// In the long run, each class and key gets its share, whatever the sizes of requests.
func TestOrder_LongRun(t *testing.T) {
	t.Parallel()
	m := newModel()
	sizes := map[string]float64{"a": 1, "b": 7, "c": 50}
	attained := map[accountKey]float64{}
	refill := func(c Class, key string) {
		a := m.accounts[accountKey{key, c}]
		for a == nil || len(a.waiting) < 3 {
			m.arrive(c, key, sizes[key], 1)
			a = m.accounts[accountKey{key, c}]
		}
	}
	all := 0.0
	for range 5000 {
		for key := range sizes {
			refill(Interactive, key)
		}
		refill(Batch, "c")
		r := m.next(m.now)
		m.dispatch(r)
		m.drop(r)
		r.account.fresh.Add(int64(r.cost))
		attained[accountKey{r.Key, r.Class}] += r.cost
		all += r.cost
	}
	if share := attained[accountKey{"c", Batch}] / all; math.Abs(share-leastShare) > 0.01 {
		t.Errorf("batch got %.3f of the capacity", share)
	}
	for key := range sizes {
		if share := attained[accountKey{key, Interactive}] / all * 3 / (1 - leastShare); math.Abs(share-1) > 0.05 {
			t.Errorf("%s got %.3f of its part", key, share)
		}
	}
}

// Shares are max-min by key, respect each class's least share, waste nothing, and sum to the capacity.
func TestShares_Exhaustive(t *testing.T) {
	t.Parallel()
	kinds := []demand{{accountKey: accountKey{"a", Interactive}}, {accountKey: accountKey{"b", Interactive}}, {accountKey: accountKey{"a", Batch}}, {accountKey: accountKey{"c", Batch}}}
	amounts := []float64{0, 1, 9}
	total := int(math.Pow(float64(len(amounts)), float64(2*len(kinds))))
	for n := range total {
		for _, capacity := range []float64{1, 8, 20} {
			var of [2][]demand // as each proxy sees it
			sum := 0.0
			for i, left := 0, n; i < len(kinds); i++ {
				a, b := amounts[left%3], amounts[left/3%3]
				left /= 9
				sum += a + b
				one, other := kinds[i], kinds[i]
				one.own, one.total, other.own, other.total = a, a+b, b, a+b
				of[0], of[1] = append(of[0], one), append(of[1], other)
			}
			divide(capacity, of[0])
			divide(capacity, of[1])
			if problem := checkDivision(capacity, sum, of[0]); problem != "" {
				t.Fatalf("%v of %+v: %s", capacity, of[0], problem)
			}
			if a, b := shareOf(of[0]), shareOf(of[1]); sum > 0 && math.Abs(a+b-1) > epsilon {
				t.Fatalf("%v of %+v: shares %v and %v", capacity, of[0], a, b)
			}
		}
	}
}

func checkDivision(capacity, sum float64, list []demand) string {
	given := 0.0
	var byClass, wanted [classes]float64
	for _, d := range list {
		given += d.granted
		byClass[d.class] += d.granted
		wanted[d.class] += d.total
		if d.granted > d.total+epsilon {
			return "a key gets more than it wants"
		}
		for _, e := range list {
			if e.class == d.class && d.granted < d.total-epsilon && e.granted > d.granted+epsilon {
				return "a key gets less than another one, and wants more"
			}
		}
	}
	least := min(wanted[Batch], leastShare*capacity)
	switch {
	case math.Abs(given-min(capacity, sum)) > epsilon:
		return "capacity is wasted"
	case byClass[Batch] < least-epsilon:
		return "the lower class has less than its least share"
	case byClass[Batch] > least+epsilon && byClass[Interactive] < wanted[Interactive]-epsilon:
		return "the lower class has more than its least share"
	}
	return ""
}

func TestStart(t *testing.T) {
	t.Parallel()
	m := newModel()
	m.arrive(Default, "a", 10, 1)
	m.accounts[accountKey{"a", Default}].fresh.Add(1000)
	m.arrive(Default, "b", 10, 1)
	m.accounts[accountKey{"b", Default}].fresh.Add(500)
	m.arrive(Default, "c", 10, 1) // a has 1000, and b started at that value
	if a := m.accounts[accountKey{"c", Default}]; a.attained() != 1000 {
		t.Errorf("starts at %v", a.attained())
	}
	m.now = m.now.Add(halfLife)
	a := m.accounts[accountKey{"a", Default}]
	if a.fold(m.now); a.attained() != 500 {
		t.Errorf("after the half-life %v", a.attained())
	}
}

// A key that was last active in another proxy long ago starts like a new key.
func TestStartAfterAnotherProxy(t *testing.T) {
	t.Parallel()
	m := newModel()
	m.arrive(Default, "a", 10, 1)
	m.accounts[accountKey{"a", Default}].fresh.Add(1000)
	m.arrive(Default, "b", 10, 1)
	b := m.accounts[accountKey{"b", Default}]
	m.remove(m.waiting[1])
	m.drop(m.waiting[1])
	b.service, b.others = 0, 1e-12
	m.arrive(Default, "b", 10, 1)
	if got := b.attained(); got < 1000 {
		t.Errorf("starts at %v", got)
	}
}

// The time after the last waiting request was dispatched or refused does not count.
func TestMeter_LastRequestLeaves(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*queue, *Request){
		"leaves":  func(m *queue, r *Request) { m.leave(r) },
		"refused": func(m *queue, r *Request) { m.end(r, errors.New("deadline")) },
	} {
		m, now := new(queue), time.Unix(1e9, 0)
		r := &Request{Class: Default, Bytes: 1, account: &account{class: Default, at: now}, cost: 10, ready: make(chan error, 1)}
		m.order.add(r, now)
		m.waiting.Add(1)
		m.meter.note(100, now)
		if ends(m, r); !m.meter.at.IsZero() || m.waiting.Load() != 0 {
			t.Errorf("%s: %+v, %d wait", name, m.meter, m.waiting.Load())
		}
	}
}

// Single waiting requests with pauses between them are dispatched at the rate of a long queue.
func TestMeter_LoneRequests(t *testing.T) {
	t.Parallel()
	const cost, wait = 1000.0, 8.0 // seconds
	m, now := meter{}, time.Unix(1e9, 0)
	sum, rounds := 0.0, 50
	for range rounds {
		m.note(0, now)
		for range int(wait / tick.Seconds()) {
			now = now.Add(tick)
			m.note(0, now)
		}
		m.note(cost, now)
		m.pause()
		now = now.Add(2 * time.Second)
		sum += m.rate
	}
	if got, want := sum/float64(rounds), cost/wait; got < want/2 || got > want*2 {
		t.Errorf("%.0f per second, want about %.0f", got, want)
	}
}
