package sched

import "github.com/pdmesh/pdmesh/internal/sched/policy"

// LoadOf is the load of the first rank of an engine that is known.
func (s *Scheduler) LoadOf(address string) *policy.Load {
	c, _ := s.Loads.counters.find(address)
	return &c.load
}
