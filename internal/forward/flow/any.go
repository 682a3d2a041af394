package flow

import (
	"net/http"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// Passthrough is a request that a single instance answers, unchanged.
type Passthrough struct {
	Method, Target string // Target is the path with its query
	Body           splice.Body
	// Named returns the body with another model; model is a JSON string.
	Named  func(model string) splice.Body
	Stream bool
	// DecodeOnly is why no prefill computes its prompt, "" if nothing is generated.
	DecodeOnly string
}

// PassThrough sends the request to a single instance: a decode instance, or a prefill
// instance if there is no decode instance.
func (r *Request) PassThrough(p Passthrough) {
	for r.again = true; r.again; {
		r.again = false
		r.passThrough(p)
	}
}

func (r *Request) passThrough(p Passthrough) {
	r.begin(sched.Request{Unpaired: true})
	r.Route.DecodeOnly = p.DecodeOnly
	body := p.Body
	if model := r.served(); model != "" {
		body = p.Named(model)
	}
	for done := false; !done; {
		a, err := r.attempts.pickAny(p.DecodeOnly != "")
		if err != nil {
			r.answerUnserved(err, instance.Decode, func(*leg.Failure) bool { return true })
			return
		}
		r.Route.Prefill, r.Route.Decode = "", "" // an earlier leg may have been of the other role
		r.Route.notePick(a)
		l := r.Origin.Begin(a, r.Settings.answerWait(p.Stream))
		f := r.relayOn(l, p.Method, p.Target, r.plainHeader(a), body)
		l.End()
		a.Done()
		if done = f == nil || !r.note(a, f); done && f != nil {
			r.sendFailure(f)
		}
	}
}

// plainHeader returns the header of a leg without KV transfer. It names the data-parallel rank of the pick.
func (r *Request) plainHeader(a *sched.Assignment) leg.Header {
	return r.Origin.NewHeader(leg.EngineID(r.Origin.ID), connector.Pinned(a.Instance, a.Rank)...)
}

// relayOn sends a leg without KV transfer and relays its answer.
func (r *Request) relayOn(l *leg.Leg, method, target string, h leg.Header, body splice.Body, rewriters ...relay.Rewriter) *leg.Failure {
	resp, err := l.Send(method, target, h, body)
	if err != nil {
		return l.JudgeError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return relay.ReadError(l, resp, r.Settings.Idle)
	}
	return r.relay(relay.Source{Leg: l, Resp: resp, Rewriters: rewriters, Commit: func() {
		r.attempts.served(l.Instance)
		r.Route.answered = true
		r.DropBody()
	}})
}
