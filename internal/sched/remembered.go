package sched

import (
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

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
	s.Loads.counters.eachRank(in, func(l *policy.Load) {
		out = append(out, RankLoad{InFlight: l.InFlight.Load(), Waiting: l.Waiting.Load(), Held: l.Held.Load()})
	})
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
