package forward

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// verdict says what follows from a failed leg.
type verdict uint8

const (
	again      verdict = iota // try another instance
	final                     // tell the client; trying again would change nothing
	clientGone                // nobody is waiting any more
)

// The classes of failures, as in metrics and the access log.
const (
	classConnect   = "connect"
	classLost      = "lost"
	classTimeout   = "timeout"
	classStatus5xx = "status_5xx"
	classBusy      = "busy" // 429, 408, 425
	classRefused4x = "status_4xx"
	classKey       = "engine_key"
	classModel     = "model_missing"
	classAnswer    = "bad_answer"
	classEvent     = "error_event"
)

// failure is a leg that gave no answer to pass on as a success.
type failure struct {
	verdict verdict
	class   string
	// taken tells that the instance may have begun to work, so that a
	// single-use hand-over must be held for spent.
	taken bool
	// free tells that it does not count against the tries of the request.
	free bool
	// answer is what the client gets if this failure is the last one.
	answer answer
	err    error
}

// answer is an error as it goes to the client: the engine's own, or ours.
type answer struct {
	status int
	header http.Header
	body   []byte
	own    *openai.Error
}

func ours(e *openai.Error) answer { return answer{status: e.Status, own: e} }

// ofExchange judges an error of the upstream client.
func (x *exchange) ofExchange(in *instance.Instance, err error) *failure {
	if x.ctx.Err() != nil {
		return &failure{verdict: clientGone, err: err, taken: true}
	}
	f := &failure{verdict: again, class: classLost, taken: true, err: err}
	var e *upstream.Error
	if errors.As(err, &e) {
		f.taken = e.MaybeTaken
		switch {
		case e.Timeout() && e.Stage != upstream.StageNotConnected:
			f.class = classTimeout
		case e.Stage == upstream.StageNotConnected:
			f.class, f.free = classConnect, true
			// Refused or silent: either way nobody can be reached there, and
			// one probe will bring it back.
			x.h.opts.Ejector.Eject(in, "cannot connect: "+e.Error())
		case e.Stage == upstream.StageHeaders:
			f.class = classAnswer
		}
	}
	status, kind := http.StatusBadGateway, openai.TypeBadGateway
	if f.class == classTimeout {
		status, kind = http.StatusGatewayTimeout, openai.TypeGatewayTimeout
	}
	f.answer = ours(&openai.Error{Status: status, Type: kind,
		Message: fmt.Sprintf("the %s instance did not answer (%s); it was tried on %d",
			in.Role, f.class, x.entry.Attempts+1)})
	return f
}

// ofStatus judges an answer whose status is not 200; body is its content.
func (x *exchange) ofStatus(in *instance.Instance, status int, header http.Header, body []byte) *failure {
	f := &failure{
		verdict: again, taken: true,
		answer: answer{status: status, header: header, body: body},
		err:    fmt.Errorf("%s answered %d", in.Key, status),
	}
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		f.class, f.taken = classBusy, false
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && x.ownKey:
		f.verdict, f.class = final, classKey
		f.answer = ours(&openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway,
			Message: "the proxy's key for the engines was refused; this is a configuration error of the proxy (--engine-api-key)"})
		x.h.opts.Log.WithField("instance", in.Key.String()).
			Errorf("engine refused the proxy's key with %d: check --engine-api-key", status)
	case status == http.StatusNotFound && x.model != "" && in.ServesModel(x.model):
		// The record promises the model: the instance is wrong, not the client.
		f.class, f.taken = classModel, false
	case status >= 400 && status < 500:
		f.verdict, f.class = final, classRefused4x
	case status >= 500:
		f.class, f.taken = classStatus5xx, status != http.StatusServiceUnavailable
	default:
		f.class = classAnswer
		f.answer = ours(badAnswer(in, fmt.Sprintf("status %d", status)))
	}
	return f
}

// ofEvent judges an error event that came before the answer was committed.
func (x *exchange) ofEvent(in *instance.Instance, code int, event []byte) *failure {
	f := &failure{verdict: again, class: classEvent, taken: true, err: fmt.Errorf("%s sent an error event", in.Key)}
	body := openai.EventData(event)
	header := http.Header{"Content-Type": {"application/json"}}
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code == http.StatusTooEarly:
		f.answer = answer{status: code, header: header, body: body}
	case code >= 400 && code < 500:
		f.verdict, f.class = final, classRefused4x
		f.answer = answer{status: code, header: header, body: body}
	case code >= 500:
		f.answer = answer{status: code, header: header, body: body}
	default:
		f.answer = answer{status: http.StatusInternalServerError, header: header, body: body}
	}
	return f
}

// ofAnswer judges an answer that is not what an engine sends.
func (x *exchange) ofAnswer(in *instance.Instance, what string) *failure {
	return &failure{
		verdict: again, class: classAnswer, taken: true,
		answer: ours(badAnswer(in, what)), err: fmt.Errorf("%s: %s", in.Key, what),
	}
}

func badAnswer(in *instance.Instance, what string) *openai.Error {
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway,
		Message: fmt.Sprintf("the %s instance sent an answer that cannot be used: %s", in.Role, what)}
}

// retryWait is told to clients when nobody can serve them now.
const retryWait = time.Second

func unavailable(role instance.Role, model string) *openai.Error {
	msg := "no " + string(role) + " instance is available right now"
	if model != "" {
		msg += " for model " + strconv.Quote(model)
	}
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Message: msg, RetryAfter: retryWait}
}

func unknownModel(model string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Param: "model",
		Message: "The model `" + model + "` does not exist."}
}
