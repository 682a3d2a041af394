package sched

import (
	"slices"
	"sync"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// standing ranks a candidate for one request: the lower, the better.
type standing uint8

const (
	fine         standing = iota
	starting              // not ejected, but with a reduced share of picks at first
	full                  // its KV cache is full
	ejected               // ejected, but accepts connections
	sameEngine            // its engine is the partner's
	unreachable           // unreachable (see Health), or slow (see instance.Slow)
	siblingTried          // the request has tried another rank of its instance
	unfit                 // the request has tried it, or it cannot be paired with the partner
	suspended             // its engine sleeps or is paused: it is never picked
	standings
)

// filter finds the candidates that a request may get.
type filter struct {
	opts      *Options
	loads     *Loads
	scratches sync.Pool // of *scratch
}

// scratch is reused memory for filtering one list.
type scratch struct {
	standings   []standing
	choices     []policy.Choice
	zoneChoices []policy.Choice // see preferZone
}

// admitted returns the candidates of a list that a request may get now, usually the whole list unchanged. If
// l is not nil, it has their memory; the caller puts it back into scratches when a policy has chosen.
func (f *filter) admitted(ix *index, list *candidates, r *Request) (among policy.Candidates, l *scratch) {
	troubled, fit := f.opts.Health.Troubled(), ix.allFit(list, r)
	var fullKeys []instance.Key
	if r.Role == instance.Decode {
		fullKeys = f.loads.Full()
	}
	if len(troubled) == 0 && len(fullKeys) == 0 && list.slow == 0 && fit {
		return list.all, nil
	}
	l, _ = f.scratches.Get().(*scratch)
	n, mostEjected := l.judge(f, ix, list, r, troubled, fullKeys, fit)
	if n[fine] == len(list.items) {
		f.scratches.Put(l)
		return list.all, nil
	}
	worst := admission(&n, mostEjected)
	l.choices = slices.Grow(l.choices[:0], len(list.items))
	among = policy.Some(list.items, l.choices, n[unfit]+n[siblingTried] > 0)
	for i, is := range l.standings {
		if is > worst || worst == unreachable && !f.lastResort(list, i, r) {
			continue
		}
		weight := list.items[i].Weight
		if is == starting {
			weight *= max(f.opts.Health.Share(list.items[i].Instance.Key), 0.01) // it may have been suspended since
		}
		among.Add(i, weight)
	}
	if among.Len() == 0 && n[siblingTried] > 0 {
		for i, is := range l.standings {
			if is == siblingTried && f.opts.Health.Available(list.items[i].Instance.Key) {
				among.Add(i, list.items[i].Weight)
			}
		}
	}
	return among, l
}

// judge sets the standing of every candidate, and returns the number of candidates with each. mostEjected
// covers the instances that can be paired, whether or not the request has tried them. Health is queried only
// for troubled instances, and once for each, since it may change meanwhile.
func (l *scratch) judge(f *filter, ix *index, list *candidates, r *Request, troubled, fullKeys []instance.Key, fit bool) (n [standings]int, mostEjected bool) {
	l.standings = slices.Grow(l.standings[:0], len(list.items))[:len(list.items)]
	clear(l.standings)
	n[fine] = len(list.items)
	mark := func(i int, is standing) {
		n[l.standings[i]]--
		n[is]++
		l.standings[i] = is
	}
	if !fit {
		for i := range list.facts {
			if !list.pairs(i, ix, r) {
				mark(i, unfit)
			}
		}
	}
	markAll := func(keys []instance.Key, is func(at int) standing) {
		for _, k := range keys {
			if k.Role != r.Role {
				continue
			}
			at, _ := place(list.items, k.Address)
			for ; at < len(list.items) && list.items[at].Instance.Address == k.Address; at++ {
				if l.standings[at] == fine {
					mark(at, is(at))
				}
			}
		}
	}
	markAll(troubled, func(at int) standing { return f.opinion(list.items[at].Instance.Key, r.Model) })
	for i := 0; list.slow > 0 && i < len(list.facts); i++ {
		if list.facts[i].slow && l.standings[i] < unreachable {
			mark(i, unreachable)
		}
	}
	markAll(fullKeys, func(at int) standing {
		if list.items[at].Load.Engine.Load().Full() {
			return full
		}
		return fine
	})
	mostEjected = n[ejected] > 0 && l.mostEjected(list)
	if len(r.Tried)+len(r.TriedRanks) > 0 || r.Ranked {
		for i := range list.facts {
			switch {
			case list.excluded(i, r):
				mark(i, unfit)
			case l.standings[i] != unfit && list.siblingTried(i, r):
				mark(i, siblingTried)
			}
		}
	}
	for at := r.partnerPlace(list); at >= 0 && at < len(list.items) && list.items[at].Instance.Address == r.Partner.Instance.Address; at++ {
		if l.standings[at] < sameEngine {
			mark(at, sameEngine)
		}
	}
	return n, mostEjected
}

// mostEjected reports whether more than half of the reachable instances are ejected. All ranks of
// an instance have the same health, so only the first is counted.
func (l *scratch) mostEjected(list *candidates) bool {
	in, out := 0, 0
	for i, is := range l.standings {
		switch {
		case list.items[i].Rank > 0:
		case is < ejected:
			in++
		case is == ejected:
			out++
		}
	}
	return in < out
}

// partnerPlace returns the position of the partner's engine in a list, -1 if it is absent. An engine is not
// paired with itself: there would be no KV cache to transfer.
func (r *Request) partnerPlace(list *candidates) int {
	if r.Partner == nil || r.Partner.Instance == nil || list.both == 0 {
		return -1
	}
	if at, found := place(list.items, r.Partner.Instance.Address); found {
		return at
	}
	return -1
}

// opinion returns the standing of an instance for a model, considering only its health.
func (f *filter) opinion(k instance.Key, model string) standing {
	switch {
	case f.opts.Health.Share(k) == 0:
		return suspended
	case f.opts.Health.Unreachable(k):
		return unreachable
	case !f.opts.Health.Available(k), f.opts.Health.Failing(k, model):
		return ejected
	case f.opts.Health.Share(k) < 1:
		return starting
	default:
		return fine
	}
}

// admission returns the worst standing that may be picked; n is the number of candidates with each. Usually
// that is starting. If all of those are full, full ones may be picked, since waiting there is better than
// failing. If more than half of the reachable instances are ejected (mostEjected), health is more likely
// wrong than they are: all reachable ones may be picked, as after all others were tried. If no other is
// reachable, the partner's engine serves the request by itself. If none is reachable, all may be tried: they
// may have recovered.
func admission(n *[standings]int, mostEjected bool) standing {
	roomy := n[fine] + n[starting]
	in := roomy + n[full]
	switch reachable := in + n[ejected]; {
	case reachable == 0 && n[sameEngine] > 0:
		return sameEngine
	case reachable == 0:
		return unreachable
	case mostEjected, in == 0:
		return ejected
	case roomy == 0:
		return full
	default:
		return starting
	}
}

// lastResort reports whether an instance may be picked when none is reachable. Usually all may, even a silent
// one, which may still answer. But with PrefillOptional, no request waits for a silent or slow prefill
// instance.
func (f *filter) lastResort(list *candidates, i int, r *Request) bool {
	optional := f.opts.PrefillOptional && r.Role == instance.Prefill && !r.Unpaired
	return !optional || !list.facts[i].slow && f.opts.Health.SilentFor(list.items[i].Instance.Key) == 0
}

// fits reports whether the request may get a candidate: it is not excluded and can be paired.
func (c *candidates) fits(i int, ix *index, r *Request) bool {
	return !c.excluded(i, r) && c.pairs(i, ix, r)
}

// excluded reports whether the request has tried a candidate or must get another rank.
func (c *candidates) excluded(i int, r *Request) bool {
	return c.tried(i, r) || r.Ranked && c.otherRank(i, r)
}

// pairs reports whether a candidate has the labels of the request, and can be paired with the
// partner, or with an instance that can become the partner.
func (c *candidates) pairs(i int, ix *index, r *Request) bool {
	own := c.facts[i].pairKey
	switch {
	case len(r.Labels) > 0 && !r.Labels.Matches(c.items[i].Instance):
		return false
	case r.Partner != nil:
		return canPair(own, r.Partner.PairKey)
	case r.Role == instance.Prefill && !r.Unpaired:
		both := c.facts[i].both
		return ix.decode.canPairWith(own, both) && !(both && ix.single(r.Model))
	default:
		return true
	}
}

// single reports whether at most one decode instance serves a model.
func (ix *index) single(model string) bool {
	list, _ := ix.candidates(instance.Decode, model)
	n := len(list.items)
	return n == 0 || list.items[0].Instance == list.items[n-1].Instance
}

// tried reports whether the request has tried a candidate.
func (c *candidates) tried(i int, r *Request) bool {
	k := c.items[i].Instance.Key
	return slices.Contains(r.Tried, k) || len(r.TriedRanks) > 0 && slices.Contains(r.TriedRanks, Target{k, c.items[i].Rank})
}

// otherRank reports whether a candidate is not the rank that the request must get, although its instance has
// that rank.
func (c *candidates) otherRank(i int, r *Request) bool {
	return c.items[i].Rank != r.Rank && c.items[i].Instance.Ranks() > r.Rank
}

// siblingTried reports whether the request has tried another rank of a candidate's instance.
func (c *candidates) siblingTried(i int, r *Request) bool {
	k := c.items[i].Instance.Key
	return slices.ContainsFunc(r.TriedRanks, func(t Target) bool { return t.Key == k })
}

// allFit reports whether every candidate of the role is known to fit the request without checking each: none
// was tried, and all have the same PairKey.
func (ix *index) allFit(list *candidates, r *Request) bool {
	ri := ix.role(r.Role)
	switch {
	case len(r.Tried)+len(r.TriedRanks)+len(r.Labels) > 0, r.Ranked:
		return false
	case r.Partner != nil:
		return ri.alike && canPair(ri.only, r.Partner.PairKey) && r.partnerPlace(list) < 0
	case r.Role == instance.Prefill && !r.Unpaired:
		return ri.alike && ix.decode.canPairWith(ri.only, false) && (list.both == 0 || !ix.single(r.Model) && ix.decode.alike)
	default:
		return true
	}
}

// noPairReason returns the reason (see package bypass) why no candidate of a list can be paired, for a
// request without candidates; "" if another reason applies.
func (ix *index) noPairReason(list *candidates, r *Request) (why string) {
	if r.Partner == nil && (r.Role != instance.Prefill || r.Unpaired) {
		return ""
	}
	partners := ix.decode.pairKeys
	if r.Partner != nil {
		partners = map[connector.PairKey]int{r.Partner.PairKey: 1}
	}
	for i := range list.items {
		if list.excluded(i, r) || !r.Labels.Matches(list.items[i].Instance) || list.fits(i, ix, r) {
			continue
		}
		self := list.facts[i].both && r.Partner == nil
		if self && why == "" {
			why = bypass.SameInstance
		}
		if self && ix.single(r.Model) {
			continue // no other instance serves the model
		}
		for partner := range partners {
			if self && canPair(list.facts[i].pairKey, partner) {
				continue // that partner is itself
			}
			switch is := list.facts[i].pairKey.Mismatch(partner); {
			case is == bypass.VersionMismatch:
				return is
			case why != bypass.BlockMismatch:
				why = is
			}
		}
	}
	return why
}

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
