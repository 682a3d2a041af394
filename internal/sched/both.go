package sched

import (
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Why an engine in both roles was picked for one of them.
const (
	// BothChosen: a policy chose it among others of that role alone.
	BothChosen = "chosen"
	// BothOnly: no instance of that role alone could be picked.
	BothOnly = "no_other"
)

// bothPicks counts the picks, in one role, of engines in both.
type bothPicks struct{ chosen, only atomic.Uint64 }

// counterFor returns the counter for the pick of such an engine among these candidates.
func (b *bothPicks) counterFor(list *candidates, among policy.Candidates) *atomic.Uint64 {
	if hasOneRole(list, among) {
		return &b.chosen
	}
	return &b.only
}

// hasOneRole reports whether an instance of one role only is among those that may be picked.
func hasOneRole(list *candidates, among policy.Candidates) bool {
	if list.both == len(list.items) || among.Len() == len(list.items) {
		return list.both < len(list.items)
	}
	for i := range among.Len() {
		if !list.facts[among.Index(i)].both {
			return true
		}
	}
	return false
}
