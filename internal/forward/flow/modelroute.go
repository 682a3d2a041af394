package flow

import (
	"slices"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// Split sends the request to a target of a model route. req is nil for a form.
func (r *Request) Split(c *modelroute.Choice, req *request.Request) {
	r.choice, r.named = c, r.Origin.Model
	r.Answer.Model = &relay.ModelName{Kind: r.Answer.Kind, Name: c.Route.Quoted}
	if req != nil {
		r.previous = req.PreviousResponse()
	}
	r.nextTarget()
}

// Model returns the model that the client named.
func (r *Request) Model() string {
	if r.choice != nil {
		return r.named
	}
	return r.Origin.Model
}

// CountTarget counts the request at its target, and at the targets that were passed over.
func (r *Request) CountTarget() {
	if r.choice == nil {
		return
	}
	r.choice.Target.Requests.Add(1)
	for _, t := range r.choice.Route.Targets {
		if slices.Contains(r.choice.PassedOver, t.Name) {
			t.PassedOver.Add(1)
		}
	}
}

// served returns the model name for engines, as JSON; "" if it is the one that the client named.
func (r *Request) served() string {
	if r.choice == nil || r.choice.Target.Model == r.named {
		return ""
	}
	return r.choice.Target.Quoted
}

// canServe returns a function that reports whether a target of a model route can serve a
// request. previous is the stored response that the request continues, "" for none.
func (s *Settings) canServe(previous string) func(*modelroute.Target) bool {
	if previous == "" {
		return func(t *modelroute.Target) bool { return s.Picker.CanServe(t.Model, t.Labels) }
	}
	holders := s.mayHold(previous) // only instances that have the response can continue it
	return func(t *modelroute.Target) bool {
		return slices.ContainsFunc(holders, func(in *instance.Instance) bool { return serves(in, t) })
	}
}

func serves(in *instance.Instance, t *modelroute.Target) bool {
	return in.ServesModel(t.Model) && t.Labels.Matches(in)
}

// matchTarget selects the first target that in serves, unless it serves the current one. A
// stored response's id that a client chose names neither an instance nor a target.
func (r *Request) matchTarget(in *instance.Instance) {
	if r.choice == nil || serves(in, r.choice.Target) {
		return
	}
	targets := r.choice.Route.Targets
	if i := slices.IndexFunc(targets, func(t *modelroute.Target) bool { return serves(in, t) }); i >= 0 {
		r.choice.Target = targets[i]
		r.Origin.Model, r.Route.Target = targets[i].Model, targets[i].Name
	}
}

// nextTarget selects the next target of the model route and clears the picked instances. It
// returns false if no target is left.
func (r *Request) nextTarget() bool {
	if !r.choice.Next(r.Settings.canServe(r.previous)) {
		return false
	}
	t := r.choice.Target
	r.Origin.Model, r.Route.Target, r.Route.PassedOver = t.Model, t.Name, r.choice.PassedOver
	r.Route.Prefill, r.Route.Decode, r.Route.DecodeOnly, r.Route.Decided = "", "", "", ""
	return true
}

// fallsOver reports whether another target of the model route takes over a request that
// could not be served and whose answer has not begun. busy reports whether the current
// target may serve it later; then a target without usable instances is no alternative.
func (r *Request) fallsOver(busy bool) bool {
	r.again = r.choice != nil && !r.Route.answered && r.Origin.Client.Err() == nil &&
		(!busy || r.choice.Left(r.Settings.canServe(r.previous))) && r.nextTarget()
	return r.again
}

// refuse answers with an error unless another target takes the request over.
func (r *Request) refuse(err error) {
	if !r.fallsOver(false) {
		r.Answer.Refuse(err)
	}
}

// sendFailure answers with the failure of a leg unless another target takes the request over, or it is
// sent again later.
func (r *Request) sendFailure(f *leg.Failure) {
	if !f.Rule.Retry || !r.fallsOver(f.Class == leg.Busy) {
		r.busyFailed(f)
	}
}
