package flow

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
)

// Request is one client's request to engines.
type Request struct {
	Settings *Settings
	Origin   *leg.Origin
	Answer   *relay.Answer
	Body     *scratch.Body
	Endpoint string // the path of the route
	Session  string // the id of the client's session, "" for none
	// Rank is the data-parallel rank that the client wants, if Ranked.
	Ranked bool
	Rank   int

	// Admission is the request's entry in Settings.Queue, with the fields that the client sets.
	Admission admission.Request

	Route Route // filled in as the request proceeds

	attempts attempts
	choice   *modelroute.Choice // of the model route; nil if the request has none
	named    string             // the model that the client named, if there is a choice
	previous string             // id of the stored response that the request continues, if there is a choice
	again    bool               // the request is sent again, or another target takes it over
	busy     *leg.Failure       // the answer, unless the request is sent again later
}

// Route is the path of a request: its instances, and why they were chosen.
type Route struct {
	// Traced reports whether the client may see all of the route, not only DecodeOnly.
	Traced bool
	// Times are those of the request, for the header X-PD-Timing; nil omits the header. Stream
	// reports whether the answer is a stream.
	Times  *stage.Times
	Stream bool

	Prefill, Decode string // addresses, with #rank for one of several; "" for none
	// BeganPrefill and BeganDecode are those of the leg that began a continued stream, else "".
	BeganPrefill, BeganDecode string
	// DecodeOnly is why one instance served the request without a prefill, "" if
	// there was one.
	DecodeOnly string
	// Decided is the reason of Settings.Disaggregate for or against prefill, "" if it made no decision.
	Decided string
	// PrefillPolicy and DecodePolicy are the policies that chose the two, "" for none.
	PrefillPolicy, DecodePolicy string
	// PrefillElsewhere and DecodeElsewhere are why other instances would have been
	// preferred, "" if none would; see sched.Tally.
	PrefillElsewhere, DecodeElsewhere string

	// Target is the target of the model route, "" for a request without one. PassedOver are
	// the targets that were chosen before but could not serve the request.
	Target     string
	PassedOver []string
	// Refused is why the request was not admitted, "" if it was: a reason of package admission, or
	// "key_limit_" and a keylimit.Kind.
	Refused string

	Expected int   // tokens of the prompt that the policy expects in prefill's cache
	Revision int64 // of the snapshot of the last pick
	Failed   int   // failed legs, including those that the client did not notice
	// answered reports whether the client gets the answer of a leg that is not among Failed.
	answered bool
	// Continued is the number of times that the stream was continued after its leg was lost.
	Continued int
}

// notePick records the instance of a leg.
func (r *Route) notePick(a *sched.Assignment) {
	r.Revision = a.Revision
	if a.Instance.Role == instance.Prefill {
		r.Expected = a.Cached
		r.Prefill, r.PrefillPolicy, r.PrefillElsewhere = a.Address(), a.Policy, a.Elsewhere
	} else {
		r.Decode, r.DecodePolicy, r.DecodeElsewhere = a.Address(), a.Policy, a.Elsewhere
	}
}

// Header implements relay.Route. The reason of a decode-only answer goes to every client.
func (r *Route) Header(h http.Header) {
	if r.DecodeOnly != "" {
		h.Set("X-PD-Decode-Only", r.DecodeOnly)
	}
	if len(r.PassedOver) > 0 {
		h.Set("X-PD-Model-Fallback", strings.Join(r.PassedOver, ", "))
	}
	if !r.Traced {
		return
	}
	if r.Target != "" {
		h.Set("X-PD-Model", r.Target)
	}
	h.Set("X-PD-Prefill", r.Prefill)
	h.Set("X-PD-Decode", r.Decode)
	h.Set("X-PD-Policy", r.policy())
	h.Set("X-PD-Revision", strconv.FormatInt(r.Revision, 10))
	attempts := r.Failed
	if r.answered {
		attempts++
	}
	h.Set("X-PD-Attempts", strconv.Itoa(attempts))
	if r.Decided != "" {
		h.Set("X-PD-Decided", r.Decided)
	}
	if r.Prefill != "" {
		h.Set("X-PD-Cached-Tokens", strconv.Itoa(r.Expected))
	}
	if r.Times != nil {
		h.Set("X-PD-Timing", r.timing(time.Since(r.Times.Start)))
	}
	if why := r.Elsewhere(); why != "" {
		h.Set("X-PD-Elsewhere", why)
	}
}

// timing returns the durations of the stages until now, in milliseconds, in the form of a
// Server-Timing header. A stream's first token is sent now: its time is included.
func (r *Route) timing(now time.Duration) string {
	s := r.Times.Stages(now, r.Stream)
	var b []byte
	add := func(name string, d time.Duration) {
		if d <= 0 {
			return
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(append(b, name...), ";dur="...)
		b = strconv.AppendFloat(b, float64(d)/float64(time.Millisecond), 'f', 2, 64)
	}
	add("queue", s.Queue)
	add("retry", s.Retry)
	add("prefill", s.Prefill)
	add("handover", s.Handover)
	if r.Stream {
		add("first", now)
	} else {
		add("decode", s.Decode)
	}
	return string(b)
}

// Elsewhere returns the roles, with reasons, in which the request did not go to the
// instance that its session or its zone prefers; "" if there are none.
func (r *Route) Elsewhere() string {
	var roles []string
	if r.Prefill != "" && r.PrefillElsewhere != "" {
		roles = append(roles, "prefill:"+r.PrefillElsewhere)
	}
	if r.Decode != "" && r.DecodeElsewhere != "" {
		roles = append(roles, "decode:"+r.DecodeElsewhere)
	}
	return strings.Join(roles, ";")
}

// policy returns the policy that chose: one name if both roles have the same, else prefill's
// and decode's.
func (r *Route) policy() string {
	switch {
	case r.Prefill == "" || r.PrefillPolicy == r.DecodePolicy:
		return r.DecodePolicy
	case r.Decode == "":
		return r.PrefillPolicy
	}
	return r.PrefillPolicy + ", " + r.DecodePolicy
}

// notePick records the instance of a completion's leg.
func (r *Request) notePick(a *sched.Assignment) {
	r.Route.notePick(a)
	r.Admission.Picked(a.Instance.Role)
}

// begin prepares the request for its first pick; wanted has the fields that begin does not set.
func (r *Request) begin(wanted sched.Request) {
	wanted.Model, wanted.Session = r.Origin.Model, r.Session
	wanted.Measure = r.Settings.Estimator != nil
	wanted.Ranked, wanted.Rank = r.Ranked, r.Rank
	if r.choice != nil {
		wanted.Labels = r.choice.Target.Labels
	}
	r.attempts = attempts{s: r.Settings, origin: r.Origin, wanted: wanted}
}

// countFailed counts a failed leg.
func (r *Request) countFailed(k instance.Key, class leg.Class) {
	r.Route.Failed++
	r.Settings.Recorder.Failed(k, class)
}

// relay relays the answer of a leg; see relay.Answer.Relay. It counts a leg that broke off
// an answer which no other leg continues, unless the proxy cut off the answer.
func (r *Request) relay(s relay.Source) *leg.Failure {
	f := r.Answer.Relay(s)
	if class := r.Answer.Failure; f == nil && r.Answer.Outcome == relay.OutcomeBroken && class != "" {
		s.Leg.Span.Failed(string(class))
		r.countFailed(s.Leg.Instance.Key, class)
	}
	return f
}

// note counts a failed leg; see attempts.note.
func (r *Request) note(a *sched.Assignment, f *leg.Failure) bool {
	r.countFailed(a.Instance.Key, f.Class)
	again := r.attempts.note(a, f)
	if f.Class == leg.Busy && !r.Route.answered && r.Answer.Times.At(stage.Computed) == 0 {
		r.Answer.Times.Pass(stage.Refused)
	}
	return again
}

// DropBody releases the request's body when no further leg needs it: an open stream must
// not hold the prompt.
func (r *Request) DropBody() {
	if r.Body != nil {
		r.Body.Release(r.Origin.BodyIsFree())
	}
}

// answerUnserved answers a request for which no instance of a role was picked. It sends the
// last failure of a leg if accept returns true for it, else the error of the pick. It calls
// no model unknown before the list of at least one instance is known.
func (r *Request) answerUnserved(err error, role instance.Role, accept func(*leg.Failure) bool) {
	last := r.attempts.lastFailure
	if r.Route.Prefill == "" && r.Route.Decode == "" {
		r.Route.DecodeOnly = "" // no instance serves it
	}
	switch {
	case r.Origin.Client.Err() != nil:
		r.Answer.ClientGone()
	case r.fallsOver(last != nil && last.Class == leg.Busy):
	case errors.Is(err, sched.ErrUnknownModel) && r.choice == nil && len(r.Settings.Picker.Models()) > 0:
		r.Answer.Refuse(r.unknownModel(r.Origin.Model))
	case last != nil && accept(last):
		r.busyFailed(last)
	default:
		r.Answer.Refuse(leg.NoPick(err, role, r.Model()))
	}
}

func (r *Request) unknownModel(model string) *openai.Error {
	return openai.UnknownModel(model, r.Settings.Picker.Models())
}
