package forward

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// failure is a leg that gave no answer to pass on as a success.
type failure struct {
	class Class
	rule  rule
	// taken tells that the instance may have begun to work, so that a
	// single-use hand-over must be held for spent.
	taken bool
	// answer is what the client gets if this failure is the last one.
	answer answer
	err    error
}

func newFailure(class Class, a answer, err error) *failure {
	r := class.rule()
	return &failure{class: class, rule: r, taken: !r.sameKV, answer: a, err: err}
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
		return newFailure(ClientGone, answer{}, err)
	}
	class := classOf(err)
	f := newFailure(class, x.lastWord(in, class), err)
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		// Refused now, but an earlier try on a pooled connection may have
		// reached it.
		f.taken = f.taken || e.MaybeTaken
	}
	return f
}

// calledOff judges a leg that has ended for a cause of ours while some of its
// answer lay unread.
func (x *exchange) calledOff(in *instance.Instance, cause error) *failure {
	return x.ofExchange(in, &upstream.Error{Stage: upstream.StageBody, Address: in.Address, Err: cause, MaybeTaken: true})
}

// classOf tells what an error of the upstream client was.
func classOf(err error) Class {
	switch {
	case errors.Is(err, sched.ErrGone):
		return Gone
	case errors.Is(err, errHandoverExpired):
		return HandoverExpired
	case errors.Is(err, errPrefillTimeout):
		return PrefillTimeout
	case errors.Is(err, errFirstByteTimeout):
		return FirstByteTimeout
	case errors.Is(err, errIdleTimeout):
		return IdleTimeout
	}
	var e *upstream.Error
	if !errors.As(err, &e) {
		return Lost
	}
	switch e.Stage {
	case upstream.StageNotConnected:
		switch {
		case e.Refused():
			return NotConnected
		case e.Timeout():
			return ConnectTimeout
		case e.Exhausted():
			return NoSocket
		}
		return NoConnection
	case upstream.StageHeaders:
		return BadAnswer
	case upstream.StageBody:
		return BrokeOff
	case upstream.StageStale, upstream.StageSent:
	}
	return Lost
}

// lastWord is what the client hears if nothing better comes.
func (x *exchange) lastWord(in *instance.Instance, class Class) answer {
	switch class {
	case NotConnected, ConnectTimeout, NoConnection, Gone:
		return ours(unavailable(in.Role, x.model))
	case NoSocket:
		return ours(noSocket())
	case PrefillTimeout, FirstByteTimeout, IdleTimeout:
		return ours(&openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeGatewayTimeout,
			Message: fmt.Sprintf("the %s instance did not answer in time", in.Role)})
	default:
		return ours(&openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway,
			Message: fmt.Sprintf("the connection to the %s instance was lost before it answered", in.Role)})
	}
}

// ofStatus judges an answer whose status is not 200. Its text is not read yet.
func (x *exchange) ofStatus(in *instance.Instance, status int, header http.Header) *failure {
	theirs := answer{status: status, header: header}
	err := fmt.Errorf("%s answered %d", in.Key, status)
	switch {
	case isBusy(status):
		return newFailure(Busy, theirs, err)
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && x.ownKey:
		x.h.opts.Log.WithField("instance", in.Key.String()).
			Errorf("engine refused the proxy's key with %d: check --engine-api-key", status)
		return newFailure(EngineKey, ours(&openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway,
			Message: "the engines refuse the proxy's key for them; this is a configuration error of the proxy (--engine-api-key)"}), err)
	case status == http.StatusNotFound && x.model != "" && in.ServesModel(x.model):
		// The record promises the model: the instance is wrong, not the client.
		return newFailure(ModelMissing, theirs, err)
	case status >= 400 && status < 500:
		return newFailure(Status4xx, theirs, err)
	case status == http.StatusServiceUnavailable:
		return newFailure(Unavailable503, theirs, err)
	case status >= 500:
		return newFailure(Status5xx, theirs, err)
	default:
		return x.ofAnswer(in, fmt.Sprintf("status %d", status))
	}
}

func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == http.StatusTooEarly
}

// ofEvent judges an error event that came before the answer was committed.
func (x *exchange) ofEvent(in *instance.Instance, code int, event []byte) *failure {
	// A copy: the stream's buffer is another's before the client is told.
	body := bytes.Clone(openai.EventData(event))
	if !json.Valid(body) {
		return x.ofAnswer(in, "an error event that is no JSON")
	}
	a := answer{status: code, body: body, header: http.Header{"Content-Type": {"application/json"}}}
	err := fmt.Errorf("%s sent an error event (%d)", in.Key, code)
	if code >= 400 && code < 500 && !isBusy(code) {
		return newFailure(Status4xx, a, err)
	}
	if code < 400 {
		a.status = http.StatusInternalServerError
	}
	return newFailure(ErrorEvent, a, err)
}

// ofAnswer judges an answer that is not what an engine sends.
func (x *exchange) ofAnswer(in *instance.Instance, what string) *failure {
	return newFailure(BadAnswer, ours(&openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway,
		Message: fmt.Sprintf("the %s instance sent an answer that cannot be used: %s", in.Role, what)}),
		fmt.Errorf("%s: %s", in.Key, what))
}

// retryWait is told to clients when nobody can serve them now.
const retryWait = time.Second

// unread is unavailable of a proxy that has started and found no etcd yet.
func unread() *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: retryWait,
		Message: "this proxy has not read yet which instances there are; see its /readyz"}
}

// unpicked is what a client hears whose request nobody was found for.
func unpicked(err error, role instance.Role, model string) *openai.Error {
	if errors.Is(err, sched.ErrUnread) {
		return unread()
	}
	return unavailable(role, model)
}

func unavailable(role instance.Role, model string) *openai.Error {
	msg := "no " + string(role) + " instance is available right now"
	if model != "" {
		msg += " for model " + strconv.Quote(model)
	}
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Message: msg, RetryAfter: retryWait}
}

func noSocket() *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: retryWait,
		Message: "this proxy cannot open another connection at the moment; try again"}
}

func budgetSpent() *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: retryWait,
		Message: "too many requests are being retried at the moment; try again"}
}

func (x *exchange) unknownModel(model string) *openai.Error {
	return openai.UnknownModel(model, x.h.opts.Picker.Models())
}
