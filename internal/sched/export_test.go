package sched

import "github.com/pdmesh/pdmesh/internal/sched/policy"

// LoadOf returns the load of the first known rank of an engine.
func (s *Scheduler) LoadOf(address string) *policy.Load {
	c, _ := s.Loads.counters.find(address)
	return &c.load
}
