package sched

import (
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Counts is what other proxies have on an instance.
type Counts struct{ InFlight, Waiting, Held float64 }

// SetOthers notes what all other proxies together have in flight, by address; none
// where an address is not named. It is called about once a second, also when nothing
// changed: what policies look at is weighed anew.
func (s *Scheduler) SetOthers(of map[string]Counts) {
	s.counters.mu.RLock()
	defer s.counters.mu.RUnlock()
	for address, e := range s.counters.m {
		c := of[address]
		ranks := float64(1 + len(e.more)) // which rank they use they do not say
		set := func(l *policy.Load) {
			l.Others.InFlight.Store(c.InFlight / ranks)
			l.Others.Waiting.Store(c.Waiting / ranks)
			l.Others.Held.Store(c.Held / ranks)
			l.Weigh()
		}
		set(&e.load)
		for _, l := range e.more {
			set(&l.Load)
		}
	}
}
