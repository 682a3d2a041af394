package sched

import "github.com/pdmesh/pdmesh/internal/sched/policy"

// Why an engine in both roles was picked for one of them.
const (
	// BothChosen: a policy chose it among others of that role alone.
	BothChosen = "chosen"
	// BothOnly: no instance of that role alone could be picked.
	BothOnly = "no_other"
)

// bothReason returns the reason for the pick of such an engine among these candidates.
func bothReason(list *candidates, among policy.Candidates) string {
	switch len(list.items) {
	case list.both:
		return BothOnly
	case among.Len():
		return BothChosen
	}
	for i := range among.Len() {
		if !list.facts[among.Index(i)].both {
			return BothChosen
		}
	}
	return BothOnly
}
