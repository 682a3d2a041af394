package sched

import (
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Tally counts picks.
type Tally struct {
	Picks     Counts // by the policy that has chosen
	Both      Counts // of engines in both roles, by reason
	Elsewhere Counts // of instances other than the preferred one, by reason
}

func newTally(chains map[instance.Role][]policy.Kind) *Tally {
	t := &Tally{}
	for role, chain := range chains {
		for i := range chain {
			t.Picks.add(role, chain[i].Name)
		}
		t.Both.add(role, BothChosen, BothOnly)
		t.Elsewhere.add(role, sessionOverloaded, zoneOverloaded, zoneNone)
	}
	return t
}

// Counts has the counters of each role by the name of a policy or a reason.
type Counts [2][]*tally

type tally struct {
	name  string
	picks atomic.Uint64
}

func (t *Counts) add(role instance.Role, names ...string) {
	for _, name := range names {
		t[role.Index()] = append(t[role.Index()], &tally{name: name})
	}
}

// of returns the counter of a name; nil if there is none.
func (t *Counts) of(role instance.Role, name string) *atomic.Uint64 {
	for _, one := range t[role.Index()] {
		if one.name == name {
			return &one.picks
		}
	}
	return nil
}

// Each calls f for each role and name with the number of picks.
func (t *Counts) Each(f func(role instance.Role, name string, picks uint64)) {
	for _, role := range instance.Roles() {
		for _, one := range t[role.Index()] {
			f(role, one.name, one.picks.Load())
		}
	}
}
