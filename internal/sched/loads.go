package sched

import (
	"slices"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Loads has the load of engines: the legs of this proxy, those of other proxies, and the engines'
// reports. It outlives snapshots. New creates it; it is safe for concurrent use.
type Loads struct {
	counters counters
	full     atomic.Pointer[[]instance.Key] // see Full; written with counters.mu held
	pins     pins
}

// Total is the load of all ranks of an instance.
type Total struct {
	InFlight, Waiting, Held int64 // as in policy.Load
	InRole                  int64 // legs in the role of the key; only Totals sets it
	// Others is the number of legs of other proxies.
	Others float64
	// OthersWaiting is the number of prompt tokens of other proxies that wait there.
	OthersWaiting float64
	// OthersHeld is the number of prompt tokens of other proxies in its KV cache.
	OthersHeld float64
	Engine     *policy.Engine // its last report; nil: there is none, or it is too old
}

// Hits counts prefix cache hits of one engine, in tokens of all prompts.
type Hits struct {
	Asked    int64 // in prompts whose answer reports their length
	Expected int64 // of Asked, expected in the cache by the policy
	Found    int64 // of Asked, found in the cache
}

// hits has the atomic values of Hits, and the picks and the legs in flight of an engine by role.
type hits struct {
	asked, expected, found atomic.Int64
	picks                  [2]atomic.Uint64
	legs                   [2]atomic.Int64
	moves                  [2]atomic.Int64 // Unix time in ns from which ShouldMove is true; 0: never
}

// Each is Totals for callers that need only the number of legs.
func (l *Loads) Each(f func(k instance.Key, inFlight int64)) {
	l.Totals(func(k instance.Key, t Total) { f(k, t.InFlight) })
}

// Progress returns the number of times that progress of an engine was observed, in both roles. It
// changes while the engine computes answers of this proxy.
func (l *Loads) Progress(k instance.Key) uint64 {
	if c, ok := l.counters.find(k.Address); ok {
		return c.progress.Load()
	}
	return 0
}

// InFlight returns the number of legs of this proxy on an instance, over all its ranks. An engine
// in both roles has one count.
func (l *Loads) InFlight(k instance.Key) int64 {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	if e := l.counters.m[k.Address]; e != nil {
		return e.inFlight()
	}
	return 0
}

// SetEngine sets the last report of an instance's engine, and of each rank its part; nil if it is too old.
// The last reported size of the KV cache stays known.
func (l *Loads) SetEngine(k instance.Key, report *policy.Engine) {
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	full := false
	if e := l.counters.m[k.Address]; e != nil { // else it has left just now
		full = e.setReport(report) && e.present[instance.Decode.Index()] > 0
	}
	k.Role = instance.Decode
	if list := slices.Clone(l.Full()); slices.Contains(list, k) != full {
		list = slices.DeleteFunc(list, func(o instance.Key) bool { return o == k })
		if full {
			list = append(list, k)
		}
		l.full.Store(&list)
	}
}

// Full returns the decode instances with a rank whose KV cache was full in the last report. It may include
// former members. Full prefill instances are still picked: their blocks are freed once decode has fetched
// them.
func (l *Loads) Full() []instance.Key {
	if list := l.full.Load(); list != nil {
		return *list
	}
	return nil
}

// Total returns the load of an instance; false if it is not known.
func (l *Loads) Total(k instance.Key) (Total, bool) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	if e := l.counters.m[k.Address]; e != nil {
		return e.total(), true
	}
	return Total{}, false
}

// Totals calls f for every member with the load of its engine, and for instances that have left and still
// have legs in flight.
func (l *Loads) Totals(f func(k instance.Key, t Total)) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		for _, role := range instance.Roles() {
			at := role.Index()
			t := e.total()
			if t.InRole = e.hits.legs[at].Load(); e.present[at] > 0 || e.absent() && t.InFlight != 0 && e.hadRole[at] {
				f(instance.Key{Role: role, Address: address}, t)
			}
		}
	}
}

// SetOthers sets the total load of the other proxies by address; a missing address means 0. It must be called
// about once a second, even without changes: it recomputes the values that policies compare
// (policy.Load.Weigh).
func (l *Loads) SetOthers(of map[string]instance.OthersLoad) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		c, n := of[address], e.ranks()
		ranks := float64(n) // the other proxies do not publish the rank
		for rank, one := range e.loads() {
			if rank == n {
				c = instance.OthersLoad{} // the engine was restarted with fewer ranks
			}
			one.Others.InFlight.Store(c.InFlight / ranks)
			one.Others.Waiting.Store(c.Waiting / ranks)
			one.Others.Held.Store(c.Held / ranks)
			one.Weigh()
		}
	}
}

// Hits calls f for every prefill instance with its cache hits.
func (l *Loads) Hits(f func(k instance.Key, h Hits)) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		if e.present[instance.Prefill.Index()] > 0 {
			f(instance.Key{Role: instance.Prefill, Address: address},
				Hits{e.hits.asked.Load(), e.hits.expected.Load(), e.hits.found.Load()})
		}
	}
}

// Picks calls f for every member with the number of its picks in its role.
func (l *Loads) Picks(f func(k instance.Key, n uint64)) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		for _, role := range instance.Roles() {
			if at := role.Index(); e.present[at] > 0 {
				f(instance.Key{Role: role, Address: address}, e.hits.picks[at].Load())
			}
		}
	}
}

// setReport sets the report of the engine, and reports whether a rank of it is full.
func (e *engine) setReport(report *policy.Engine) (full bool) {
	e.report = report
	for rank, l := range e.loads() {
		is := report
		if len(e.otherRanks) > 0 {
			is = report.Rank(rank)
		}
		l.Engine.Store(is)
		if is != nil && is.All.Capacity > 0 {
			l.Capacity.Store(float64(is.All.Capacity))
		}
		l.Weigh()
		full = full || is.Full()
	}
	return full
}

func (e *engine) total() Total {
	t := Total{Engine: e.report}
	for _, l := range e.loads() {
		t.InFlight += l.InFlight.Load()
		t.Others += l.Others.InFlight.Load()
		t.OthersWaiting += l.Others.Waiting.Load()
		t.OthersHeld += l.Others.Held.Load()
		t.Waiting += l.Waiting.Load()
		t.Held += l.Held.Load()
	}
	return t
}

// RankLoad is the load of one data-parallel rank of an instance, with the prompts that policies remember for
// it.
type RankLoad struct {
	InFlight, Waiting, Held int64 // as in policy.Load
	// Prompts are those of the role, for all models.
	Prompts policy.Remembered
}

// Ranks returns the load of each rank of an instance, in their order; none if the instance is
// not known. An engine in both roles has one load, but remembered prompts of each role.
func (s *Scheduler) Ranks(in *instance.Instance) []RankLoad {
	var out []RankLoad
	s.Loads.counters.mu.RLock()
	if e := s.Loads.counters.m[in.Address]; e != nil {
		for rank, l := range e.loads() {
			if rank < in.Ranks() {
				out = append(out, RankLoad{InFlight: l.InFlight.Load(), Waiting: l.Waiting.Load(), Held: l.Held.Load()})
			}
		}
	}
	s.Loads.counters.mu.RUnlock()
	lists := s.index.current().role(in.Role)
	for rank := range out {
		hash := policy.NewCandidate(in, rank, nil).Hash
		for _, r := range lists.recorders() {
			out[rank].Prompts.Add(r.RememberedOf(hash))
		}
	}
	return out
}

// Remembered returns the sum of the prompts that the policies of a role remember. ok is false if none of them
// remembers prompts.
func (s *Scheduler) Remembered(role instance.Role) (sum policy.Remembered, ok bool) {
	for _, r := range s.index.current().role(role).recorders() {
		sum.Add(r.Remembered())
		ok = true
	}
	return sum, ok
}

// recorders returns the policies of all lists of the role that record prompts.
func (ri *roleIndex) recorders() []policy.Recorder {
	all := ri.all.recorders()
	for _, list := range ri.byModel {
		all = append(all, list.recorders()...)
	}
	return all
}

// recorders returns the policies of the list that record prompts.
func (c *candidates) recorders() (list []policy.Recorder) {
	for i := range c.policies {
		if r, ok := c.policies[i].Policy.(policy.Recorder); ok {
			list = append(list, r)
		}
	}
	return list
}
