package sched

import (
	"cmp"
	"slices"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/explain"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Reasons why a candidate may not be picked, in addition to those of its record and view.
const (
	OutModel     = "model"       // it serves other models
	OutLabels    = "labels"      // its labels do not match the target of the model route
	OutConnector = "connector"   // the proxy does not support its connector
	OutEjected   = "ejected"     // health has ejected it
	OutSilent    = "unreachable" // health: no connection succeeds, it hangs, or it fails trial requests
	OutSuspended = "suspended"   // its engine sleeps or is paused
	OutSlow      = "slow"        // its engine does not answer the probes of its agent
	OutFull      = "full"        // its KV cache is full
	OutTried     = "tried"       // the request has already tried it
	OutZone      = "zone"        // it is not in the preferred zone
)

// Explained is the result of a simulated pick, with reasons.
type Explained struct {
	Role     instance.Role
	Revision int64 // of the snapshot
	// Candidates are all members of the role, each rank separately.
	Candidates []explain.Candidate
	// Policy is the policy that chooses; "" if no candidate is left: then Err has the reason.
	Policy string
	Err    error
	// Assignment is the result of the pick. It is not counted, and no leg may use it.
	Assignment *Assignment
}

// Explain simulates Pick without side effects: no turn is taken, and nothing is counted or remembered.
func (s *Scheduler) Explain(r Request) *Explained {
	ix := s.index.current()
	e := &Explained{Role: r.Role, Revision: ix.snapshot.Revision, Candidates: []explain.Candidate{}}
	list, known := ix.candidates(r.Role, r.Model)
	if !known {
		e.Err = ErrUnknownModel
		e.addMembers(s, &candidates{}, &r)
		return e
	}
	among, l := s.filter.admitted(ix, list, &r)
	in := make(map[int]bool, among.Len())
	for i := range among.Len() {
		in[among.Index(i)] = true
	}
	among, l, zone := s.filter.preferZone(list, among, &r, l)
	var why policy.Explanation
	r.Tentative, r.TokensIdentifyCache = true, false
	chosen := -1
	switch {
	case ix.lacksDecode(&r):
		e.Err = ErrModelAbsent
	case among.Len() == 0:
		e.Err = ix.noneReason(list, &r)
	default:
		f := r.features()
		f.Tokens = s.Tokens(r.Model, r.promptBytes())
		var unsure policy.Tentative
		var passed *policy.Candidate
		f.Tentative, f.Explanation, f.Passed = &unsure, &why, &passed
		by := list.choose(among, f)
		chosen = by.at
		e.Policy, e.Assignment = by.by, &Assignment{Revision: e.Revision, Elsewhere: elsewhereText(zone, passed)}
		e.Assignment.set(list, by, f.Tokens)
		e.Assignment.measure()
	}
	weights := make(map[int]float64, among.Len()) // by position in the list
	for i := range among.Len() {
		weights[among.Index(i)] = among.Weight(i)
	}
	if l != nil {
		s.filter.scratches.Put(l)
	}
	for at := range list.items {
		is := &list.items[at]
		l := is.Load
		c := explain.Candidate{
			Address: AddressOf(is.Instance, is.Rank), Chosen: at == chosen, Weight: is.Weight,
			InFlight: l.InFlight.Load(), Waiting: l.Waiting.Load(), Held: l.Held.Load(), Others: l.Others.InFlight.Load(),
		}
		switch weight, ok := weights[at]; {
		case ok:
			c.Weight = weight
			for _, s := range why.Of(at) {
				c.Scores = append(c.Scores, explain.Score(s))
			}
		case in[at]:
			c.Out = OutZone
		default:
			c.Out = s.outReason(ix, list, at, &r)
		}
		e.Candidates = append(e.Candidates, c)
	}
	e.addMembers(s, list, &r)
	return e
}

// addMembers adds the members of the role that are not in the list of the model.
func (e *Explained) addMembers(s *Scheduler, list *candidates, r *Request) {
	for _, in := range s.Members().All() {
		if in.Role != r.Role {
			continue
		}
		if at, found := place(list.items, in.Address); found && list.items[at].Instance == in {
			continue
		}
		e.Candidates = append(e.Candidates, explain.Candidate{Address: AddressOf(in, 0), Out: s.unlistedReason(in)})
	}
}

// unlistedReason returns the reason why a member is not a candidate.
func (s *Scheduler) unlistedReason(in *instance.Instance) string {
	switch {
	case in.Intent != "":
		return string(in.Intent)
	case in.View != "" && in.View != instance.Orphan:
		return string(in.View)
	case in.Weight() == 0:
		return "weight_0"
	case in.Record.State != instance.Ready && !in.Slow():
		return string(in.Record.State)
	case !in.Verified:
		return string(instance.Unverified)
	case s.opts.PairKey(in).Connector == "":
		return OutConnector
	default:
		return OutModel
	}
}

// outReason returns the reason why a candidate of the list may not be picked for a request.
func (s *Scheduler) outReason(ix *index, list *candidates, at int, r *Request) string {
	k := list.items[at].Instance.Key
	switch {
	case list.tried(at, r), list.siblingTried(at, r):
		return OutTried
	case !r.Labels.Matches(list.items[at].Instance):
		return OutLabels
	case !list.fits(at, ix, r):
		one := *list
		one.items, one.facts = list.items[at:at+1], list.facts[at:at+1]
		return cmp.Or(ix.noPairReason(&one, r), bypass.ConnectorMismatch)
	case r.Partner != nil && r.Partner.Instance != nil && r.Partner.Instance.Address == k.Address:
		return bypass.SameInstance
	case s.opts.Health.Share(k) == 0:
		return OutSuspended
	case s.opts.Health.Unreachable(k):
		return OutSilent
	case !s.opts.Health.Available(k), s.opts.Health.Failing(k, r.Model):
		return OutEjected
	case list.facts[at].slow:
		return OutSlow
	case slices.Contains(s.Loads.Full(), k):
		return OutFull
	default:
		return OutSilent
	}
}
