package forward

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// What became of an invalid request, for metrics.
const (
	AskRefused  = "refused"  // an engine refused it, and its words went to the client
	AskAccepted = "accepted" // an engine would have served it
	AskFailed   = "failed"   // no engine said anything that could be passed on
	AskNobody   = "nobody"   // there was no instance to ask
	AskBusy     = "busy"     // too many were being asked about
	AskWithheld = "withheld" // it was not sent: see openai.MayAsk
)

const (
	// askTimeout bounds a question. An engine refuses an invalid request at once, and
	// one that accepts it works on it for no longer than this.
	askTimeout = 2 * time.Second
	// maxAsking bounds the questions at a time: who sends nothing but invalid requests
	// must not keep the engines busy.
	maxAsking = 16
)

// invalid answers a request that is refused for its body: in the words of an engine, if
// one can be asked and refuses it too, else in ours. The engine gets the body as the
// client sent it, once, and whatever comes of it, nobody is blamed and nothing is
// tried again.
func (x *exchange) invalid(body []byte, err error) {
	var own *openai.Error
	if !errors.As(err, &own) || own.Final {
		x.refuse(err)
		return
	}
	f, outcome := x.ask(body)
	x.h.opts.Recorder.Asked(outcome)
	switch {
	case f != nil:
		x.tell(f)
	case x.ctx.Err() != nil:
		x.gone()
	default:
		x.refuse(own)
	}
}

// ask puts an invalid body to one engine. It gives the engine's refusal, nil if there is
// none, and what became of the question.
func (x *exchange) ask(body []byte) (*failure, string) {
	if !openai.MayAsk(body) || len(x.r.Header["Content-Encoding"]) > 0 {
		return nil, AskWithheld
	}
	if x.h.asking.Add(1) > maxAsking {
		x.h.asking.Add(-1)
		return nil, AskBusy
	}
	defer x.h.asking.Add(-1)
	a, err := x.pickAny()
	unknown := ""
	if errors.Is(err, sched.ErrUnknownModel) {
		// What else is wrong is told by anybody; some mistakes come before the model and
		// some behind it.
		unknown, x.model = x.model, ""
		a, err = x.pickAny()
	}
	if err != nil {
		return nil, AskNobody
	}
	defer a.Done()
	x.notePick(a)
	l := x.beginAside(askTimeout, errFirstByteTimeout)
	defer l.end()
	l.request = upstream.Request{
		Instance: a.Instance, Method: http.MethodPost, Path: x.entry.Endpoint,
		Header: x.legHeader(x.engineID()), Body: openai.BodyOf(body).Segments(),
	}
	resp, err := x.do(l)
	if err != nil {
		return nil, AskFailed
	}
	defer func() { _ = resp.Body.Close() }() // unread: the engine gives up what it has begun
	switch {
	case resp.Status >= 200 && resp.Status < 300:
		return nil, AskAccepted
	case resp.Status == http.StatusNotFound && unknown != "":
		return newFailure(Status4xx, ours(x.unknownModel(unknown)), sched.ErrUnknownModel), AskRefused
	case !refusal(resp.Status):
		return nil, AskFailed
	}
	text, err := x.readBounded(resp, maxErrorBody)
	if err != nil {
		return nil, AskFailed
	}
	theirs := answer{status: resp.Status, header: resp.Header, body: text}
	return newFailure(Status4xx, theirs, fmt.Errorf("%s refused an invalid request with %d", a.Instance.Key, resp.Status)), AskRefused
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
