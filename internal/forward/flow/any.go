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

// Passed is a request that one instance answers alone.
type Passed struct {
	Method, Target string // the path with its query
	Body           splice.Body
	Stream         bool
	// Alone is why no prefill computes its prompt, "" if nothing is generated from one.
	Alone string
}

// PassOn has one instance answer the request alone: a decode instance, or a prefill
// instance where there is none.
func (r *Request) PassOn(p Passed) {
	r.begin(sched.Request{})
	r.Route.Alone = p.Alone
	w := leg.Wait{Limit: r.Settings.NonStream, Cause: leg.ErrFirstByteTimeout, Silence: r.Settings.FirstByte}
	if p.Stream {
		w.Limit = r.Settings.FirstByte
	}
	for done := false; !done; {
		a, err := r.attempts.pickAny()
		if err != nil {
			r.without(err, instance.Decode, func(*leg.Failure) bool { return true })
			return
		}
		r.Route.took(a)
		l := r.Origin.Begin(a, w)
		f := r.passOn(a, l, &p)
		l.End()
		a.Done()
		if done = f == nil || !r.note(a, f); done && f != nil {
			r.Answer.Tell(f)
		}
	}
}

// pinned is what a leg of no dialect carries: the rank that it is for.
func pinned(a *sched.Assignment) *connector.Leg {
	return &connector.Leg{Header: connector.Pinned(a.Instance, a.Rank)}
}

func (r *Request) passOn(a *sched.Assignment, l *leg.Leg, p *Passed) *leg.Failure {
	resp, err := l.Send(p.Method, p.Target, r.engineHeader(leg.EngineID(r.Origin.ID), pinned(a)), p.Body)
	if err != nil {
		return l.OfError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return relay.ReadError(l, resp, r.Settings.Idle)
	}
	return r.Answer.Relay(relay.Source{Leg: l, Resp: resp, Commit: func() {
		r.attempts.served(a.Instance)
		r.DropBody()
	}})
}
