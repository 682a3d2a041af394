package flow

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// What became of an invalid request, for metrics.
const (
	AskRefused  = "refused"  // an engine refused it, and its words went to the client
	AskAccepted = "accepted" // an engine would have served it
	AskFailed   = "failed"   // no engine said anything that could be passed on
	AskNobody   = "nobody"   // there was no instance to ask
	AskBusy     = "busy"     // too many were being asked about
	AskWithheld = "withheld" // it was not sent: see request.MayAsk
)

const (
	// askTimeout bounds a question. An engine refuses an invalid request at once, and
	// one that accepts it works on it for no longer than this.
	askTimeout = 2 * time.Second
	// maxAsking bounds the questions at a time: who sends nothing but invalid requests
	// must not keep the engines busy.
	maxAsking = 16
)

// maxRefusal bounds the refusals that are passed on, in bytes.
const maxRefusal = 1 << 20

// questions counts the questions that are under way.
type questions struct{ atomic.Int64 }

// begin books a question. It tells whether there may be one more.
func (a *questions) begin() bool {
	if a.Add(1) > maxAsking {
		a.Add(-1)
		return false
	}
	return true
}

func (a *questions) end() { a.Add(-1) }

// Invalid answers a request that is refused for its body: in the words of an engine, if
// one can be asked and refuses it too, else in ours. The engine gets the body as the
// client sent it, once, and whatever comes of it, nobody is blamed and nothing is
// tried again.
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
		r.Answer.SendFailure(f)
	case r.Origin.Client.Err() != nil:
		r.Answer.ClientGone()
	default:
		r.Answer.Refuse(own)
	}
}

// ask puts an invalid body to one engine. It gives the engine's refusal, nil if there is
// none, and what became of the question.
func (r *Request) ask() (*leg.Failure, string) {
	if !request.MayAsk(r.Body.Bytes()) || len(r.Origin.Header["Content-Encoding"]) > 0 {
		return nil, AskWithheld
	}
	if !r.Settings.questions.begin() {
		return nil, AskBusy
	}
	defer r.Settings.questions.end()
	r.begin(sched.Request{})
	a, err := r.attempts.pickAny()
	unknown := ""
	if errors.Is(err, sched.ErrUnknownModel) {
		// What else is wrong is told by anybody; some mistakes come before the model and
		// some behind it.
		unknown, r.Origin.Model = r.Origin.Model, ""
		r.begin(sched.Request{})
		a, err = r.attempts.pickAny()
	}
	if err != nil {
		return nil, AskNobody
	}
	defer a.Done()
	r.Route.notePick(a)
	l, resp, err := r.Origin.Ask(a.Instance, askTimeout, http.MethodPost, r.Endpoint,
		r.Origin.NewHeader(leg.EngineID(r.Origin.ID), connector.Pinned(a.Instance, a.Rank)...), splice.Of(r.Body.Bytes()))
	defer l.End()
	if err != nil {
		return nil, AskFailed
	}
	defer func() { _ = resp.Body.Close() }() // unread: the engine gives up what it has begun
	switch {
	case resp.Status >= 200 && resp.Status < 300:
		return nil, AskAccepted
	case resp.Status == http.StatusNotFound && unknown != "":
		return leg.NewFailure(leg.Status4xx, leg.ProxyError(r.unknownModel(unknown)), sched.ErrUnknownModel), AskRefused
	case !refusal(resp.Status):
		return nil, AskFailed
	}
	text, err := relay.ReadAll(resp, maxRefusal)
	if err != nil {
		return nil, AskFailed
	}
	theirs := leg.Answer{Status: resp.Status, Header: resp.Header, Body: text}
	return leg.NewFailure(leg.Status4xx, theirs, fmt.Errorf("%s refused an invalid request with %d", a.Instance.Key, resp.Status)), AskRefused
}

// refusal tells the statuses by which an engine says that a body is wrong. What it says
// of keys, of a model or of its load is no answer to that.
func refusal(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
