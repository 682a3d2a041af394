package admission

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Entry is the published state of one key in one class and queue of a proxy.
type Entry struct {
	Model string // see instance.QueueName
	Class Class
	Key   string // name of the API key
	// Attained is the recent service, Backlog the cost of the waiting requests: an uncached prompt token
	// counts 1, an output token 2.
	Attained, Backlog float64
}

// Others is the known state of the other proxies. It is immutable.
type Others struct {
	// Queues has the entries of each proxy with a backlog; the backlog of an old digest counts less. Attained
	// has the entries of the other proxies, which have no backlog.
	Queues   [][]Entry
	Attained []Entry
	// ByLoad is the part of the other proxies' waiting tokens, from 0 to 1, of proxies without a backlog,
	// such as those of an older version or with another mode. They count by their load, the others by their
	// share.
	ByLoad float64
	// Blind is the last known number of other proxies while their digests are too old; 0 while digests
	// are received.
	Blind int
}

// attained returns the service that a key has attained in the other proxies; 0 if there are none.
func (o *Others) attained(model string, k accountKey) (sum float64) {
	if o == nil {
		return 0
	}
	for _, entries := range append(slices.Clip(o.Queues), o.Attained) {
		for _, e := range entries {
			if e.Model == model && e.Class == k.class && e.Key == k.name {
				sum += e.Attained
			}
		}
	}
	return sum
}

// SetOthers sets the state of the other proxies, and dispatches the requests that fit.
func (q *Queues) SetOthers(o *Others) {
	if q != nil {
		q.others.Store(o)
		for _, m := range *q.models.Load() {
			m.used.Store(false) // the next request makes the plan again
		}
		q.Wake()
	}
}

// Elsewhere returns the uncached prompt tokens of the requests that wait in other proxies, by model, as
// estimated from their backlog.
func (q *Queues) Elsewhere() map[string]float64 {
	out := map[string]float64{}
	if q == nil || q.others.Load() == nil {
		return out
	}
	for _, entries := range q.others.Load().Queues {
		for _, e := range entries {
			out[instance.QueuedModel(e.Model)] += e.Backlog
		}
	}
	for model := range out {
		r := q.opts.Rates(model, "")
		w := work{uncached: r.Uncached, output: cmp.Or(r.Output, unknownOutput)}
		out[model] *= w.uncached / w.cost()
	}
	return out
}

// Entries returns at most limit entries to publish: those with the largest backlog first, then those with the
// most service. It is empty unless the queues are on.
func (q *Queues) Entries(limit int) []Entry {
	if q.Mode() != On {
		return nil
	}
	now := q.opts.Now()
	var out []Entry
	for _, m := range *q.models.Load() {
		m.mu.Lock()
		for _, list := range m.order.accounts {
			for _, a := range list {
				a.fold(now)
				if a.cost >= 1 || a.service >= minAttained {
					out = append(out, Entry{m.name, a.class, a.name, math.Round(a.service), math.Round(a.cost)})
				}
			}
		}
		m.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Backlog, a.Backlog), cmp.Compare(b.Attained, a.Attained), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Class, b.Class))
	})
	return out[:min(len(out), limit)]
}

// minAttained is the attained service below which a key without a backlog is not published.
const minAttained = 100

// Decay returns the remaining weight of service that was attained some time ago.
func Decay(age time.Duration) float64 {
	return math.Exp2(-float64(max(age, 0)) / float64(halfLife))
}

// demand is the backlog of one key in one class.
type demand struct {
	accountKey
	own, total float64 // of this proxy, and of all
	granted    float64 // set by divide: the part of total within the capacity
}

// divide divides capacity among demands: by class, where each lower class keeps leastShare, and within a
// class max-min fair over its keys. It may reorder the list.
func divide(capacity float64, list []demand) {
	slices.SortFunc(list, func(a, b demand) int { return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.total, b.total)) })
	var sums [classes]float64
	for _, d := range list {
		sums[d.class] += d.total
	}
	left := capacity
	for from := 0; from < len(list); {
		c, to := list[from].class, from
		for to < len(list) && list[to].class == c {
			to++
		}
		kept := 0.0
		for low := c + 1; low < classes; low++ {
			kept += min(sums[low], leastShare*capacity)
		}
		grant := min(sums[c], max(left-kept, 0))
		left -= grant
		for i := from; i < to; i++ { // by increasing demand
			list[i].granted = min(list[i].total, grant/float64(to-i))
			grant -= list[i].granted
		}
		from = to
	}
}

// shareOf returns this proxy's part of the capacity that divide has granted: of each key in proportion to its
// part of the backlog.
func shareOf(list []demand) float64 {
	own, all := 0.0, 0.0
	for _, d := range list {
		all += d.granted
		if d.total > 0 {
			own += d.granted * d.own / d.total
		}
	}
	if all == 0 {
		return 1
	}
	return own / all
}

// share sets this proxy's part of the capacity in a plan, and the service that the keys have attained in
// other proxies. The caller holds the lock.
func (m *queue) share(p *plan) {
	o := m.others.Load()
	switch {
	case o == nil:
		return
	case o.Blind > 0:
		p.share = 1 / float64(1+o.Blind)
		return
	}
	found := map[accountKey]*demand{}
	of := func(k accountKey) *demand {
		if found[k] == nil {
			found[k] = &demand{accountKey: k}
		}
		return found[k]
	}
	accounts, attained := *m.accounts.Load(), 0.0
	for k, a := range accounts {
		a.fold(p.at)
		a.others = 0
		attained += a.service
		if a.cost > 0 {
			d := of(k)
			d.own, d.total = a.cost, a.cost
		}
	}
	competing := 0
	for i, entries := range append(slices.Clip(o.Queues), o.Attained) {
		competes := false
		for _, e := range entries {
			if e.Model != m.name {
				continue
			}
			attained += e.Attained
			k := accountKey{e.Key, e.Class}
			if a := accounts[k]; a != nil {
				a.others += e.Attained
			}
			if e.Backlog > 0 && i < len(o.Queues) {
				of(k).total += e.Backlog
				competes = true
			}
		}
		if competes {
			competing++
		}
	}
	if competing == 0 {
		return // all other proxies count by their load
	}
	p.byLoad = o.ByLoad
	list := make([]demand, 0, len(found))
	for _, d := range found {
		list = append(list, *d)
	}
	p.target += digestPeriod.Seconds()
	// The capacity is the service of a second, from the recently attained service.
	divide(max(attained*math.Ln2/halfLife.Seconds(), 1), list)
	if p.share = shareOf(list); p.share == 0 { // a request fits without a backlog, too
		p.share = leastShare
	}
}
