package sched

import "github.com/pdmesh/pdmesh/internal/sched/policy"

// Reasons for picking an engine in both roles.
const (
	// BothChosen: a policy preferred it to instances with only this role.
	BothChosen = "chosen"
	// BothOnly: no instance with only this role could be picked.
	BothOnly = "no_other"
)

// bothReason returns the reason for picking such an engine among these candidates.
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
