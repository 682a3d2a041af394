package sched

import (
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// SetEngine notes what the engine of an instance says of itself, nil when that is too
// old to be believed. Each rank that is a target has its own part of it. The size of the
// KV cache is kept.
func (s *Scheduler) SetEngine(k instance.Key, said *policy.Engine) {
	s.noteFull(k, s.counters.setEngine(k.Address, said))
}

// setEngine tells whether a target of the engine is full.
func (c *counters) setEngine(address string, said *policy.Engine) (full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[address]
	if e == nil {
		return false // it has just left
	}
	e.said = said
	set := func(l *policy.Load, is *policy.Engine) {
		l.Engine.Store(is)
		if is != nil && is.All.Capacity > 0 {
			l.Capacity.Store(float64(is.All.Capacity))
		}
		l.Weigh()
		full = full || is.Full()
	}
	if len(e.more) == 0 {
		set(&e.load, said)
		return full
	}
	set(&e.load, said.Rank(0))
	for i, l := range e.more {
		set(&l.Load, said.Rank(i+1))
	}
	return full
}

// noteFull keeps the list of the decode instances that, or ranks of which, have no room. A full prefill
// instance is passed over for nobody: its blocks are free once decode has them.
func (s *Scheduler) noteFull(k instance.Key, is bool) {
	if k.Role != instance.Decode {
		return
	}
	s.fullMu.Lock()
	defer s.fullMu.Unlock()
	list := s.Full()
	if slices.Contains(list, k) == is {
		return
	}
	if is {
		list = append(slices.Clone(list), k)
	} else {
		list = slices.DeleteFunc(slices.Clone(list), func(o instance.Key) bool { return o == k })
	}
	s.full.Store(&list)
}

// Full lists the instances of which a rank's KV cache had no room when they were asked last. A key
// may stand in it that is no member any more.
func (s *Scheduler) Full() []instance.Key {
	if list := s.full.Load(); list != nil {
		return *list
	}
	return nil
}

// Total is what all ranks of an instance have to do.
type Total struct {
	InFlight, Waiting, Held int64 // as in policy.Load
	// Others is what the other proxies have in flight there.
	Others float64
	Engine *policy.Engine // what it says of itself; nil: nothing, or that is too old
}

// Total gives the load of an instance; false for one that is not known.
func (s *Scheduler) Total(k instance.Key) (Total, bool) {
	s.counters.mu.RLock()
	defer s.counters.mu.RUnlock()
	if e := s.counters.m[k.Address]; e != nil {
		return e.total(), true
	}
	return Total{}, false
}

// Totals calls f for every membership with the load of its engine, and for those that
// have left and still have something in flight.
func (s *Scheduler) Totals(f func(k instance.Key, t Total)) {
	s.counters.mu.RLock()
	defer s.counters.mu.RUnlock()
	for address, e := range s.counters.m {
		for _, role := range instance.Roles() {
			at := side(role)
			if t := e.total(); e.present[at] > 0 || e.gone() && t.InFlight != 0 && e.was[at] {
				f(instance.Key{Role: role, Address: address}, t)
			}
		}
	}
}

func (e *engine) total() Total {
	t := Total{InFlight: e.load.InFlight.Load(), Others: e.load.Others.InFlight.Load(), Waiting: e.load.Waiting.Load(), Held: e.load.Held.Load(), Engine: e.said}
	for _, l := range e.more {
		t.InFlight += l.InFlight.Load()
		t.Others += l.Others.InFlight.Load()
		t.Waiting += l.Waiting.Load()
		t.Held += l.Held.Load()
	}
	return t
}
