package sched

import (
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Tally counts picks: by policy, of engines in both roles, and of instances other than the preferred one.
type Tally struct{ picks, both, elsewhere tallies }

func newTally(chains map[instance.Role][]policy.Kind) *Tally {
	t := &Tally{}
	for role, chain := range chains {
		for i := range chain {
			t.picks.add(role, chain[i].Name)
		}
		t.both.add(role, BothChosen, BothOnly)
		t.elsewhere.add(role, sessionOverloaded, zoneOverloaded, zoneNone)
	}
	return t
}

// tallies has the counters of each role by the name of a policy or a reason.
type tallies [2][]*tally

type tally struct {
	name  string
	picks atomic.Uint64
}

func (t *tallies) add(role instance.Role, names ...string) {
	for _, name := range names {
		t[role.Index()] = append(t[role.Index()], &tally{name: name})
	}
}

// of returns the counter of a name; nil if there is none.
func (t *tallies) of(role instance.Role, name string) *atomic.Uint64 {
	for _, one := range t[role.Index()] {
		if one.name == name {
			return &one.picks
		}
	}
	return nil
}

func (t *tallies) each(f func(role instance.Role, name string, picks uint64)) {
	for _, role := range instance.Roles() {
		for _, one := range t[role.Index()] {
			f(role, one.name, one.picks.Load())
		}
	}
}

// Picks calls f for every policy that may choose for a role, with the number of its picks.
func (t *Tally) Picks(f func(role instance.Role, policy string, picks uint64)) { t.picks.each(f) }

// Both calls f for each role and reason with the number of picks of an engine in both roles.
func (t *Tally) Both(f func(role instance.Role, reason string, picks uint64)) { t.both.each(f) }

// Elsewhere calls f for each role and reason with the number of picks outside the preference.
func (t *Tally) Elsewhere(f func(role instance.Role, reason string, picks uint64)) {
	t.elsewhere.each(f)
}
