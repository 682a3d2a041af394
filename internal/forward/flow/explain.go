package flow

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/explain"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// Explain returns the plan of a request with this session. choice is that of its model route, or nil.
func (s *Settings) Explain(req *request.Request, session string, choice *modelroute.Choice) *explain.Plan {
	var buf [4][]byte
	head, prompt, media := req.Reading(buf[:])
	wanted := sched.Request{Model: req.Model, Session: session, Prompt: prompt, Head: head, Media: media, Length: len(req.Body)}
	p := &explain.Plan{Endpoint: req.Kind.Path(), Model: req.Model, Bytes: len(prompt)}
	previous := req.PreviousResponse()
	if choice != nil && choice.Next(s.canServe(previous)) {
		wanted.Model, wanted.Labels, p.Target = choice.Target.Model, choice.Target.Labels, choice.Target.Name
		p.Share = choice.Share()
	}
	for _, h := range head {
		p.Bytes += len(h)
	}
	switch req.Bypass {
	case "":
	case bypass.StoredResponse:
		s.explainStored(p, wanted, previous)
		return p
	default:
		s.explainDecodeOnly(p, wanted, req.Bypass)
		return p
	}
	a, d := s.explainPrefill(p, wanted, req)
	if a == nil {
		return p
	}
	wanted.Role = instance.Decode
	wanted.Partner = a
	decode := s.Picker.Explain(wanted)
	addLeg(p, decode)
	if decode.Assignment == nil {
		p.Way, p.Reason = explain.None, decode.Err.Error()
		if why := mismatchReason(decode.Err); why != "" && s.Fallback {
			s.explainDecodeOnly(p, wanted, why)
		}
		return p
	}
	p.Way = explain.Pair
	to := decode.Assignment
	if why := unfit(d, req, connector.Pair{Prefill: a.Instance, PrefillRank: a.Rank, Decode: to.Instance, DecodeRank: to.Rank}); why != "" {
		p.Way, p.Reason = explain.DecodeOnly, why
	}
	return p
}

// explainPrefill adds the prefill instance to the plan. It returns nil if no pair is needed to complete it.
func (s *Settings) explainPrefill(p *explain.Plan, wanted sched.Request, req *request.Request) (*sched.Assignment, connector.Dialect) {
	for skipped := (notifyFindings{}); ; {
		wanted.Role = instance.Prefill
		prefill := s.Picker.Explain(wanted)
		addLeg(p, prefill)
		a := prefill.Assignment
		if a == nil {
			s.explainWithout(p, wanted, prefill.Err, &skipped)
			return nil, nil
		}
		d := s.dialects[a.Connector]
		if why := unfit(d, req, connector.Pair{Prefill: a.Instance}); why != "" {
			s.explainDecodeOnly(p, wanted, why)
			return nil, nil
		}
		wanted.Role = instance.Decode
		if s.Disaggregate != nil && s.explainDecision(p, wanted, a, d) {
			s.explainDecodeOnly(p, wanted, p.Disaggregate.Reason)
			return nil, nil
		}
		switch {
		case d.Flow() != connector.Notified:
			return a, d
		case s.cannotReceive(a.Instance):
			skipped.cannotReceive = true
		case s.unnotified.bypassed(a.Instance, false):
			skipped.keys = append(skipped.keys, a.Instance.Key)
		default:
			return a, d
		}
		wanted.Tried = append(wanted.Tried, a.Instance.Key)
	}
}

// explainDecision adds the decision of Disaggregate to the plan, and reports whether it is decode-only.
func (s *Settings) explainDecision(p *explain.Plan, wanted sched.Request, a *sched.Assignment, d connector.Dialect) bool {
	var is estimate.Explanation
	decode := s.Picker.Explain(wanted).Assignment
	switch {
	case d.NeedsPrefill() || decode != nil && s.needsPrefill(decode):
		is.Reason = estimate.Connector
	case s.Disaggregate.Never:
		is.DecodeOnly, is.Reason = true, bypass.Never
	case wanted.Media:
		is.Reason = estimate.Media
	case decode == nil:
		is.Reason = estimate.Full
	default:
		is = s.Estimator.Explain(wanted.Model, onPrefill(a, float64(a.Tokens-a.Cached)), onDecode(decode))
	}
	p.Disaggregate = &explain.Weighed{Decision: explain.Pair, Reason: is.Reason, Pair: is.PairCost, DecodeOnly: is.DecodeOnlyCost, Stall: is.Stall}
	if is.DecodeOnly {
		p.Disaggregate.Decision = explain.DecodeOnly
	}
	return is.DecodeOnly
}

// explainWithout plans a request that no prefill instance can take. skipped has the
// instances that were excluded because of their notifications.
func (s *Settings) explainWithout(p *explain.Plan, wanted sched.Request, err error, skipped *notifyFindings) {
	switch why := mismatchReason(err); {
	case errors.Is(err, sched.ErrSelf):
		s.explainDecodeOnly(p, wanted, bypass.SameInstance)
	case skipped.cannotReceive && len(skipped.keys) == 0:
		s.explainDecodeOnly(p, wanted, bypass.NotHeard)
	case s.Fallback && len(skipped.keys) > 0:
		s.explainDecodeOnly(p, wanted, bypass.NotNotified)
	case errors.Is(err, sched.ErrUnknownModel) || !s.Fallback:
		p.Way, p.Reason = explain.None, err.Error()
	case why != "":
		s.explainDecodeOnly(p, wanted, why)
	default:
		s.explainDecodeOnly(p, wanted, bypass.NoPrefill)
	}
}

// explainDecodeOnly plans a request that one decode instance serves.
func (s *Settings) explainDecodeOnly(p *explain.Plan, wanted sched.Request, reason string) {
	wanted.Role, wanted.Partner = instance.Decode, nil
	decode := s.Picker.Explain(wanted)
	for decode.Assignment != nil && s.needsPrefill(decode.Assignment) {
		wanted.Tried = append(wanted.Tried, decode.Assignment.Instance.Key)
		decode = s.Picker.Explain(wanted)
	}
	addLeg(p, decode)
	p.Way, p.Reason = explain.DecodeOnly, reason
	if decode.Assignment == nil {
		p.Way, p.Reason = explain.None, decode.Err.Error()
	}
}

// explainStored plans a request that continues a stored response. The first of the
// instances that may have the response gets the request, even if it is draining or ejected.
func (s *Settings) explainStored(p *explain.Plan, wanted sched.Request, id string) {
	wanted.Role = instance.Decode
	decode := s.Picker.Explain(wanted) // for its candidates
	holders := s.mayHold(id)
	var first *explain.Candidate
	for i := range decode.Candidates {
		c := &decode.Candidates[i]
		address, _, _ := strings.Cut(c.Address, "#") // one of several ranks
		at := slices.IndexFunc(holders, func(in *instance.Instance) bool { return in.Address == address })
		if c.Chosen, c.Scores = false, nil; at < 0 {
			c.Out = cmp.Or(c.Out, bypass.StoredResponse)
			continue
		}
		if c.Out = ""; at == 0 && (first == nil || c.InFlight < first.InFlight) {
			first = c
		}
	}
	addLeg(p, decode)
	*p.Decode = explain.Leg{Candidates: decode.Candidates} // no policy has a choice
	if first == nil {
		p.Way, p.Reason = explain.None, noResponse(id).Error()
		p.Decode.Error = p.Reason
		return
	}
	first.Chosen = true
	p.Way, p.Reason = explain.DecodeOnly, bypass.StoredResponse
	p.Decode.Chosen, p.Decode.Policy = first.Address, sched.PolicyTaken
}

// addLeg adds the scheduler's explanation of one role to a plan.
func addLeg(p *explain.Plan, e *sched.Explained) {
	one := &explain.Leg{Policy: e.Policy, Candidates: e.Candidates}
	if e.Role == instance.Prefill {
		p.Prefill = one
	} else {
		p.Decode = one
	}
	p.Revision = e.Revision
	if e.Err != nil {
		one.Error = e.Err.Error()
	}
	if a := e.Assignment; a != nil {
		one.Chosen, one.Cached, one.Elsewhere = a.Address(), a.Cached, a.Elsewhere
		p.Tokens = a.Tokens
	}
}
