package sched

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Loads is what engines have to do: what this proxy has in flight there, what other proxies
// have, and what the engines say of themselves. It lives beside the snapshots.
type Loads struct {
	counters counters
	full     atomic.Pointer[[]instance.Key] // see Full
	fullMu   sync.Mutex                     // one change of full at a time
	pins     pins
}

// Total is what all ranks of an instance have to do.
type Total struct {
	InFlight, Waiting, Held int64 // as in policy.Load
	// Others is what the other proxies have in flight there.
	Others float64
	Engine *policy.Engine // what it says of itself; nil: nothing, or that is too old
}

// Counts is what other proxies have on an instance.
type Counts struct{ InFlight, Waiting, Held float64 }

// Hits is what prefill found in the cache of one engine, in tokens of all prompts.
type Hits struct {
	Asked    int64 // of prompts whose answer said how many they have
	Expected int64 // of them that the policy expected in the cache
	Found    int64 // of them that were there
}

// hits is one that is counted in.
type hits struct{ asked, expected, found atomic.Int64 }

// Each calls f for every instance that is present or has something in flight.
func (l *Loads) Each(f func(k instance.Key, inFlight int64)) { l.counters.each(f) }

// Heard counts the signs of life that legs saw of an instance, in whatever role.
func (l *Loads) Heard(k instance.Key) uint64 {
	if c, ok := l.counters.find(k.Address); ok {
		return c.heard.Load()
	}
	return 0
}

// InFlight tells what this proxy holds on an instance, on all its ranks together and in
// whatever role: an engine that stands in both has one count.
func (l *Loads) InFlight(k instance.Key) int64 {
	return l.counters.inFlight(k.Address)
}

// RanksInFlight tells what this proxy holds on each rank of an instance that has
// several; nil of any other.
func (l *Loads) RanksInFlight(in *instance.Instance) []int64 {
	if in.Ranks() == 1 {
		return nil
	}
	return l.counters.load(in.Address, in.Ranks())
}

// SetEngine notes what the engine of an instance says of itself, nil when that is too
// old to be believed. Each rank that is a target has its own part of it. The size of the
// KV cache is kept.
func (l *Loads) SetEngine(k instance.Key, said *policy.Engine) {
	l.noteFull(k, l.counters.setEngine(k.Address, said))
}

// noteFull keeps the list of the decode instances that, or ranks of which, have no room. A full prefill
// instance is picked all the same: its blocks are free once decode has them.
func (l *Loads) noteFull(k instance.Key, is bool) {
	if k.Role != instance.Decode {
		return
	}
	l.fullMu.Lock()
	defer l.fullMu.Unlock()
	list := l.Full()
	if slices.Contains(list, k) == is {
		return
	}
	if is {
		list = append(slices.Clone(list), k)
	} else {
		list = slices.DeleteFunc(slices.Clone(list), func(o instance.Key) bool { return o == k })
	}
	l.full.Store(&list)
}

// Full lists the instances of which a rank's KV cache had no room when they were asked last. A key
// may stand in it that is no member any more.
func (l *Loads) Full() []instance.Key {
	if list := l.full.Load(); list != nil {
		return *list
	}
	return nil
}

// Total gives the load of an instance; false for one that is not known.
func (l *Loads) Total(k instance.Key) (Total, bool) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	if e := l.counters.m[k.Address]; e != nil {
		return e.total(), true
	}
	return Total{}, false
}

// Totals calls f for every membership with the load of its engine, and for those that
// have left and still have something in flight.
func (l *Loads) Totals(f func(k instance.Key, t Total)) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		for _, role := range instance.Roles() {
			at := roleNumber(role)
			if t := e.total(); e.present[at] > 0 || e.gone() && t.InFlight != 0 && e.hadRole[at] {
				f(instance.Key{Role: role, Address: address}, t)
			}
		}
	}
}

// SetOthers notes what all other proxies together have in flight, by address; none
// where an address is not named. It is called about once a second, also when nothing
// changed: what policies look at is weighed anew.
func (l *Loads) SetOthers(of map[string]Counts) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		c := of[address]
		ranks := float64(1 + len(e.otherRanks)) // which rank they use they do not say
		set := func(one *policy.Load) {
			one.Others.InFlight.Store(c.InFlight / ranks)
			one.Others.Waiting.Store(c.Waiting / ranks)
			one.Others.Held.Store(c.Held / ranks)
			one.Weigh()
		}
		set(&e.load)
		for _, rank := range e.otherRanks {
			set(&rank.Load)
		}
	}
}

// Hits calls f for every prefill instance with what was found in its cache.
func (l *Loads) Hits(f func(k instance.Key, h Hits)) {
	l.counters.mu.RLock()
	defer l.counters.mu.RUnlock()
	for address, e := range l.counters.m {
		if e.present[roleNumber(instance.Prefill)] > 0 {
			f(instance.Key{Role: instance.Prefill, Address: address},
				Hits{e.hits.asked.Load(), e.hits.expected.Load(), e.hits.found.Load()})
		}
	}
}

// setEngine tells whether a target of the engine is full.
func (c *counters) setEngine(address string, said *policy.Engine) (full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[address]
	if e == nil {
		return false // it has just left
	}
	e.report = said
	set := func(l *policy.Load, is *policy.Engine) {
		l.Engine.Store(is)
		if is != nil && is.All.Capacity > 0 {
			l.Capacity.Store(float64(is.All.Capacity))
		}
		l.Weigh()
		full = full || is.Full()
	}
	if len(e.otherRanks) == 0 {
		set(&e.load, said)
		return full
	}
	set(&e.load, said.Rank(0))
	for i, l := range e.otherRanks {
		set(&l.Load, said.Rank(i+1))
	}
	return full
}

func (e *engine) total() Total {
	t := Total{InFlight: e.load.InFlight.Load(), Others: e.load.Others.InFlight.Load(), Waiting: e.load.Waiting.Load(), Held: e.load.Held.Load(), Engine: e.report}
	for _, l := range e.otherRanks {
		t.InFlight += l.InFlight.Load()
		t.Others += l.Others.InFlight.Load()
		t.Waiting += l.Waiting.Load()
		t.Held += l.Held.Load()
	}
	return t
}
