package sched

import (
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// RankLoad is what one data-parallel rank of an instance has to do, and which prompts
// policies remember that it has computed.
type RankLoad struct {
	InFlight, Waiting, Held int64 // as in policy.Load
	// Prompts are those of the role, of all models.
	Prompts policy.Remembered
}

// Ranks returns the load of each rank of an instance, in their order; none if the instance is
// not known. An engine in both roles has one load, but remembered prompts of each role.
func (s *Scheduler) Ranks(in *instance.Instance) []RankLoad {
	var out []RankLoad
	s.Loads.counters.eachRank(in, func(l *policy.Load) {
		out = append(out, RankLoad{InFlight: l.InFlight.Load(), Waiting: l.Waiting.Load(), Held: l.Held.Load()})
	})
	lists := s.index.current().role(in.Role)
	for rank := range out {
		hash := policy.NewCandidate(in, rank, nil).Hash
		lists.eachMemory(func(m *policy.Memory) {
			if m.Of != nil {
				r := m.Of(hash)
				out[rank].Prompts.Entries += r.Entries
				out[rank].Prompts.Text += r.Text
			}
		})
	}
	return out
}

// Remembered sums what the policies of a role remember of prompts. ok is false if none of
// them remembers prompts.
func (s *Scheduler) Remembered(role instance.Role) (sum policy.Remembered, ok bool) {
	s.index.current().role(role).eachMemory(func(m *policy.Memory) {
		if m.All != nil {
			r := m.All()
			sum.Entries += r.Entries
			sum.Text += r.Text
			sum.Memory += r.Memory
			ok = true
		}
	})
	return sum, ok
}

// eachMemory calls f with the memory of every policy of every list of the role.
func (ri *roleIndex) eachMemory(f func(*policy.Memory)) {
	of := func(c *candidates) {
		for i := range c.policies {
			f(c.policies[i].memory)
		}
	}
	of(ri.all)
	for _, list := range ri.byModel {
		of(list)
	}
}
