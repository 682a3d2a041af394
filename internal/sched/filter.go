package sched

import (
	"errors"
	"slices"
	"sync"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// standing is how a candidate of a list stands for one request.
type standing uint8

const (
	fine         standing = iota
	starting              // in, with a share of its picks
	full                  // in, but its KV cache has no room
	ejected               // out, but it can be connected to
	samePartner           // its engine is the partner's
	unreachable           // out, or slow by its agent's word
	siblingTried          // the request has tried another rank of its instance
	unfit                 // the request has tried it, or it does not fit its partner
	standings
)

// filter finds the candidates that a request may have.
type filter struct {
	opts      *Options
	loads     *Loads
	scratches sync.Pool // of *scratch
}

// scratch is memory for one look at a list, used again.
type scratch struct {
	standings   []standing
	choices     []policy.Choice
	zoneChoices []policy.Choice // see zoned
}

// admitted gives those of a list that a request may have now. Mostly that is the
// whole list, as it is. Their memory is that of l, if that is not nil: it is given
// back when a policy has chosen.
func (f *filter) admitted(ix *index, list *candidates, r *Request) (among policy.Candidates, l *scratch) {
	troubled, fit := f.opts.Health.Troubled(), ix.allFit(list, r)
	var noRoom []instance.Key
	if r.Role == instance.Decode {
		noRoom = f.loads.Full()
	}
	if len(troubled) == 0 && len(noRoom) == 0 && list.slow == 0 && fit {
		return list.whole, nil
	}
	l, _ = f.scratches.Get().(*scratch)
	n := l.judge(f, ix, list, r, troubled, noRoom, fit)
	if n[fine] == len(list.items) {
		f.scratches.Put(l)
		return list.whole, nil
	}
	worst := admission(&n)
	l.choices = slices.Grow(l.choices[:0], len(list.items))
	among = policy.Some(list.items, l.choices, n[unfit]+n[siblingTried] > 0)
	for i, is := range l.standings {
		if is > worst || worst == unreachable && !f.lastResort(list, i, r) {
			continue
		}
		weight := list.items[i].Weight
		if is == starting {
			weight *= f.opts.Health.Share(list.items[i].Instance.Key)
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

// judge finds out how every candidate stands, and how many stand so. Health is asked
// about those in trouble only, and once: opinions may change meanwhile.
func (l *scratch) judge(f *filter, ix *index, list *candidates, r *Request, troubled, noRoom []instance.Key, fit bool) (n [standings]int) {
	l.standings = slices.Grow(l.standings[:0], len(list.items))[:len(list.items)]
	clear(l.standings)
	n[fine] = len(list.items)
	mark := func(i int, is standing) {
		n[fine]--
		n[is]++
		l.standings[i] = is
	}
	if !fit || list.slow > 0 {
		for i := range list.facts {
			switch {
			case !fit && !list.fits(i, ix, r):
				mark(i, unfit)
			case len(r.TriedRanks) > 0 && list.siblingTried(i, r):
				mark(i, siblingTried)
			case list.facts[i].slow:
				mark(i, unreachable)
			}
		}
	}
	those := func(keys []instance.Key, is func(at int) standing) {
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
	those(troubled, func(at int) standing { return f.opinion(list.items[at].Instance.Key) })
	those(noRoom, func(at int) standing {
		if list.items[at].Load.Engine.Load().Full() {
			return full
		}
		return fine
	})
	for at := r.partnerPlace(list); at >= 0 && at < len(list.items) && list.items[at].Instance.Address == r.Partner.Instance.Address; at++ {
		if was := l.standings[at]; was < samePartner {
			n[was]--
			n[samePartner]++
			l.standings[at] = samePartner
		}
	}
	return n
}

// partnerPlace is where the engine of the partner stands in a list, -1 if it does not. It is no
// partner of its own: a hand-over to itself would be none.
func (r *Request) partnerPlace(list *candidates) int {
	if r.Partner == nil || r.Partner.Instance == nil || list.both == 0 {
		return -1
	}
	if at, found := place(list.items, r.Partner.Instance.Address); found {
		return at
	}
	return -1
}

// opinion is what health holds of an instance.
func (f *filter) opinion(k instance.Key) standing {
	switch {
	case f.opts.Health.Unreachable(k):
		return unreachable
	case !f.opts.Health.Available(k):
		return ejected
	case f.opts.Health.Share(k) < 1:
		return starting
	default:
		return fine
	}
}

// admission decides up to which standing the candidates of a list may be picked, by
// how many stand how. Usually those may that are in. When more than half of those
// that can be reached are out, the opinion is likelier wrong than they are: all of
// them may be picked. When no other can be reached, the partner's own engine does
// it all. And when none can be reached all may be picked: better to try
// than to refuse, the opinion may be older than the recovery. One that is full is
// picked when none has room: a request waits there, which is better than failing.
func admission(n *[standings]int) standing {
	roomy := n[fine] + n[starting]
	in := roomy + n[full]
	switch reachable := in + n[ejected]; {
	case reachable == 0 && n[samePartner] > 0:
		return samePartner
	case reachable == 0:
		return unreachable
	case in*2 < reachable:
		return ejected
	case roomy == 0:
		return full
	default:
		return starting
	}
}

// lastResort tells whether an instance may be picked when none can be reached. All may be,
// also a silent one, which may answer yet. But where a decode instance would do, no request
// waits for a silent prefill instance.
func (f *filter) lastResort(list *candidates, i int, r *Request) bool {
	optional := f.opts.PrefillOptional && r.Role == instance.Prefill && !r.Alone
	return !optional || !list.facts[i].slow && f.opts.Health.SilentFor(list.items[i].Instance.Key) == 0
}

// fits tells whether the request may have a candidate: not tried before, and one
// that can go with its partner, or with one that can become it.
func (c *candidates) fits(i int, ix *index, r *Request) bool {
	own := c.facts[i].pairKey
	switch {
	case c.tried(i, r), r.Ranked && c.otherRank(i, r):
		return false
	case r.Partner != nil:
		return r.canPair(own, r.Partner.pairKey())
	case r.Role == instance.Prefill && !r.Alone:
		both := c.facts[i].both
		return ix.decode.canPairWith(own, both) && !(both && ix.single(r.Model))
	default:
		return true
	}
}

// single tells that one decode instance at most serves a model.
func (ix *index) single(model string) bool {
	list, _ := ix.candidates(instance.Decode, model)
	n := len(list.items)
	return n == 0 || list.items[0].Instance == list.items[n-1].Instance
}

// tried tells that the request has tried a candidate.
func (c *candidates) tried(i int, r *Request) bool {
	k := c.items[i].Instance.Key
	return slices.Contains(r.Tried, k) || len(r.TriedRanks) > 0 && slices.Contains(r.TriedRanks, Target{k, c.items[i].Rank})
}

// otherRank tells that a candidate is another rank than the one that the request wants, of
// an instance that has that one.
func (c *candidates) otherRank(i int, r *Request) bool {
	return c.items[i].Rank != r.Rank && c.items[i].Instance.Ranks() > r.Rank
}

// siblingTried tells that the request has tried another rank of a candidate's instance.
func (c *candidates) siblingTried(i int, r *Request) bool {
	k := c.items[i].Instance.Key
	return slices.ContainsFunc(r.TriedRanks, func(t Target) bool { return t.Key == k })
}

// allFit tells that every candidate of the role fits the request, if that is
// plain to see: it has tried none, and as for pairs all are alike.
func (ix *index) allFit(list *candidates, r *Request) bool {
	ri := ix.role(r.Role)
	switch {
	case len(r.Tried)+len(r.TriedRanks) > 0, r.Ranked:
		return false
	case r.Partner != nil:
		return ri.alike && r.canPair(ri.only, r.Partner.pairKey()) && r.partnerPlace(list) < 0
	case r.Role == instance.Prefill && !r.Alone:
		return ri.alike && ix.decode.canPairWith(ri.only, false) && (list.both == 0 || !ix.single(r.Model) && ix.decode.alike)
	default:
		return true
	}
}

// noPairReason tells why a request that may have none of a list could have one if pairs were
// of no matter: nil if that is not so.
func (ix *index) noPairReason(list *candidates, r *Request) error {
	if r.Partner == nil && (r.Role != instance.Prefill || r.Alone) {
		return nil
	}
	partners := ix.decode.pairKeys
	if r.Partner != nil {
		partners = map[pairKey]int{r.Partner.pairKey(): 1}
	}
	var why error
	for i := range list.items {
		if list.tried(i, r) || r.Ranked && list.otherRank(i, r) || list.fits(i, ix, r) {
			continue
		}
		self := list.facts[i].both && r.Partner == nil
		if self && why == nil {
			why = ErrSelf
		}
		if self && ix.single(r.Model) {
			continue // instances of other models do not matter
		}
		for partner := range partners {
			if self && canPair(list.facts[i].pairKey, partner) {
				continue // that is itself
			}
			switch is := mismatch(list.facts[i].pairKey, partner); {
			case errors.Is(is, ErrVersions):
				return is
			case why == nil || !errors.Is(why, ErrBlocks):
				why = is
			}
		}
	}
	return why
}
