package flow

import (
	"errors"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// The outcomes of sending an invalid request to an engine, for metrics.
const (
	AskRefused    = "refused"     // an engine refused it, and the client got that answer
	AskAccepted   = "accepted"    // an engine would have served it
	AskFailed     = "failed"      // no engine sent an answer that could be passed on
	AskNoInstance = "no_instance" // no instance was available
	AskBusy       = "busy"        // too many invalid requests were in flight to engines
	AskWithheld   = "withheld"    // not sent; see request.MayAsk
)

// AskOutcomes lists these outcomes.
func AskOutcomes() []string {
	return []string{AskRefused, AskAccepted, AskFailed, AskNoInstance, AskBusy, AskWithheld}
}

const (
	// askTimeout bounds the request to the engine. A refusal arrives at once; an engine that
	// accepts the request works on it no longer than this.
	askTimeout = 2 * time.Second
	// maxAsking bounds these requests in flight: a client that sends only invalid requests
	// must not keep the engines busy.
	maxAsking = 16
)

// maxRefusal is the maximum size in bytes of a refusal that is passed on.
const maxRefusal = 1 << 20

// Invalid answers a request whose body is invalid: with the refusal of an engine, if one is
// available and refuses it too, else with the proxy's error. The engine gets the body
// unchanged, once. Its answer causes neither a strike nor a retry.
func (r *Request) Invalid(err error) {
	var own *openai.Error
	if !errors.As(err, &own) || own.Final {
		r.Answer.Refuse(err)
		return
	}
	f, outcome := r.ask()
	r.Settings.Recorder.Asked(outcome)
	switch {
	case f != nil:
		r.Route.answered = true
		r.Answer.SendFailure(f)
	case r.Origin.Client.Err() != nil:
		r.Answer.ClientGone()
	default:
		r.Answer.Refuse(own)
	}
}

// ask sends an invalid body to one engine. It returns the engine's refusal, nil if there is
// none, and the outcome.
func (r *Request) ask() (*leg.Failure, string) {
	if !request.MayAsk(r.Body.Bytes()) {
		return nil, AskWithheld
	}
	if !r.Settings.questions.TryAcquire(1) {
		return nil, AskBusy
	}
	defer r.Settings.questions.Release(1)
	r.begin(sched.Request{Unpaired: true})
	a, err := r.attempts.pickAny(false)
	unknown := ""
	if errors.Is(err, sched.ErrUnknownModel) {
		// Any engine can report the other errors: vLLM checks some fields before the model and some after it.
		unknown, r.Origin.Model = r.Origin.Model, ""
		r.begin(sched.Request{Unpaired: true})
		a, err = r.attempts.pickAny(false)
	}
	if err != nil {
		return nil, AskNoInstance
	}
	defer a.Done()
	r.Route.notePick(a)
	l, resp, err := r.Origin.Ask(a.Instance, askTimeout, http.MethodPost, r.Endpoint, r.plainHeader(a), splice.Of(r.Body.Bytes()))
	defer l.End()
	if err != nil {
		return nil, AskFailed
	}
	defer func() { _ = resp.Body.Close() }() // unread: the engine aborts the request
	switch {
	case resp.Status >= 200 && resp.Status < 300:
		return nil, AskAccepted
	case resp.Status == http.StatusNotFound && unknown != "":
		return l.JudgeInvalid(leg.ProxyError(r.unknownModel(unknown))), AskRefused
	case !refusal(resp.Status):
		return nil, AskFailed
	}
	text, err := relay.ReadAll(resp, maxRefusal)
	if err != nil {
		return nil, AskFailed
	}
	return l.JudgeInvalid(leg.Answer{Status: resp.Status, Header: resp.Header, Body: text}), AskRefused
}

// refusal reports whether this status is about the body, not about keys, a model or load.
func refusal(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
