package sched

import (
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Tally counts picks: by the policy that chose, those of engines in both roles, and those
// of another instance than was preferred.
type Tally struct {
	chains    map[instance.Role][]chainPolicy
	both      [2]bothPicks
	elsewhere [2]elsewhereCounts
}

// chainPolicy is one policy in the chain of a role, and its count.
type chainPolicy struct {
	policy.Kind
	picks *atomic.Uint64 // how many picks it has chosen
}

// Picks calls f for every policy that may choose for a role, with how many picks it
// has chosen.
func (t *Tally) Picks(f func(role instance.Role, policy string, picks uint64)) {
	for _, role := range instance.Roles() {
		for _, l := range t.chains[role] {
			f(role, l.Name, l.picks.Load())
		}
	}
}

// Both calls f for each role and each reason with how often an engine in both roles was
// picked.
func (t *Tally) Both(f func(role instance.Role, reason string, picks uint64)) {
	for _, role := range instance.Roles() {
		b := &t.both[role.Index()]
		f(role, BothChosen, b.chosen.Load())
		f(role, BothOnly, b.only.Load())
	}
}

// Elsewhere calls f for each role and each reason with how many picks went elsewhere.
func (t *Tally) Elsewhere(f func(role instance.Role, reason string, picks uint64)) {
	for _, role := range instance.Roles() {
		for e := sessionOverloaded; e <= zoneNone; e++ {
			f(role, e.String(), t.elsewhere[role.Index()][e].Load())
		}
	}
}
