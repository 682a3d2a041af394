package sched

import (
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Usable returns the candidates of a role that a request for a model with these labels could get now; none if
// no instance lists the model. With PrefillOptional, unreachable and slow prefill instances are omitted: if
// there is no other, requests are decode-only.
func (s *Scheduler) Usable(role instance.Role, model string, labels instance.Selector) []policy.Candidate {
	ix := s.index.current()
	list, known := ix.candidates(role, model)
	if !known {
		return nil
	}
	among, l := s.filter.admitted(ix, list, &Request{Role: role, Model: model, Labels: labels, Unpaired: true})
	optional := s.filter.opts.PrefillOptional && role == instance.Prefill
	out := make([]policy.Candidate, 0, among.Len())
	for i := range among.Len() {
		at := among.Index(i)
		if c := list.items[at]; !optional || !list.facts[at].slow && !s.filter.opts.Health.Unreachable(c.Instance.Key) {
			out = append(out, c)
		}
	}
	if l != nil {
		s.filter.scratches.Put(l)
	}
	return out
}

// Tokens estimates the number of tokens in a prompt of the given length in bytes.
func (s *Scheduler) Tokens(model string, bytes int) int { return s.ratios.of(model).tokens(bytes) }
