package leg

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// JudgeError judges an error of the upstream client.
func (l *Leg) JudgeError(err error) *Failure {
	if l.origin.Client.Err() != nil {
		return l.failed(ClientGone, Answer{}, err)
	}
	class := classOf(err)
	f := l.failed(class, l.clientAnswer(class, err), err)
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		if refused := e.Untrusted(); class == Untrusted {
			l.origin.Settings.Log.WithField("instance", l.Instance.Key.String()).Errorf("TLS with an engine failed: %s", refused.Text)
			f.Answer = ProxyError(untrusted(l.Instance.Role, refused.Reason))
		}
		// Without a connection nothing was sent, whatever ended the leg. An earlier try on a
		// pooled connection may have reached the engine.
		f.Taken = f.Taken && e.Stage != upstream.StageNotConnected || e.MaybeTaken
	}
	return f
}

// newFailure returns a failure of a class.
func newFailure(class Class, a Answer, err error) *Failure {
	r := class.Rule()
	return &Failure{Class: class, Rule: r, Taken: !r.SameKV, Answer: a, Err: err}
}

// failed returns a failure of a class and marks the leg's span with it.
func (l *Leg) failed(class Class, a Answer, err error) *Failure {
	l.Span.Failed(string(class))
	return newFailure(class, a, err)
}

// JudgeRemoved judges an instance that was removed, because of err, before its leg began.
func (o *Origin) JudgeRemoved(role instance.Role, err error) *Failure {
	return newFailure(Removed, ProxyError(Unavailable(role, o.Model)), err)
}

// JudgeMoved judges a leg whose stream another instance continues because this one drains.
func (l *Leg) JudgeMoved() *Failure {
	return newFailure(Removed, ProxyError(Unavailable(l.Instance.Role, l.origin.Model)), fmt.Errorf("%s drains: its streams move", l.Instance.Key))
}

// JudgeNeedsPrefill judges an instance that cannot answer without a prefill; reason is why there is none.
func JudgeNeedsPrefill(reason string) *Failure {
	return newFailure(Status4xx, ProxyError(NeedsPrefill(reason)), errNeedsPrefill)
}

// JudgeInvalid judges the answer a to an invalid request, which the engine has refused.
func (l *Leg) JudgeInvalid(a Answer) *Failure {
	return newFailure(Status4xx, a, fmt.Errorf("%s refused an invalid request with %d", l.Instance.Key, a.Status))
}

// JudgeCallOff judges a leg that the proxy has ended, for this cause, while some of its
// answer was unread.
func (l *Leg) JudgeCallOff(cause error) *Failure {
	return l.JudgeError(&upstream.Error{Stage: upstream.StageBody, Address: l.Instance.Address, Err: cause, MaybeTaken: true})
}

// classOf returns the class of an error of the upstream client.
func classOf(err error) Class {
	switch {
	case errors.Is(err, sched.ErrRemoved):
		return Removed
	case errors.Is(err, ErrPartner), errors.Is(err, ErrSource):
		return PartnerFailed
	case errors.Is(err, ErrNotNotified):
		return NotNotified
	case errors.Is(err, errOvertaken):
		return Overtaken
	}
	if over, ok := errors.AsType[*LimitError](err); ok {
		return over.Limit.Class
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
		case e.Untrusted() != nil:
			return Untrusted
		}
		return NoConnection
	case upstream.StageHeaders:
		if e.TooLarge() {
			return TooLarge
		}
		return BadAnswer
	case upstream.StageBody:
		if e.TooLarge() {
			return TooLarge
		}
		return BrokeOff
	case upstream.StageStale, upstream.StageSent:
	}
	return Lost
}

// clientAnswer returns the client's answer if no further attempt is made. If a limit of the
// proxy has ended the leg, it contains the name and the setting of the limit.
func (l *Leg) clientAnswer(class Class, err error) Answer {
	role := l.Instance.Role
	switch class {
	case NotConnected, NoConnection, Removed, PartnerFailed:
		return ProxyError(Unavailable(role, l.origin.Model))
	case ConnectTimeout:
		e := Unavailable(role, l.origin.Model)
		e.Message += ": " + (&LimitError{Limit{After: l.origin.Settings.Connect, Class: class, Setting: "--connect-timeout"}}).Error()
		return ProxyError(e)
	case NoSocket:
		return ProxyError(unavailable("this proxy cannot open another connection at the moment; try again"))
	case NotNotified, PrefillTimeout, FirstByteTimeout, IdleTimeout, TransferExpired, Overtaken, NotContinued:
		return ProxyError(timedOut(role, err))
	case TooLarge:
		return ProxyError(tooLarge(role, "its head or its trailer"))
	default:
		return ProxyError(badGateway(fmt.Sprintf("the connection to the %s instance was lost before it answered", role)))
	}
}

// timedOut returns the 504 for a leg that was given up because of err.
func timedOut(role instance.Role, err error) *openai.Error {
	why := ErrNotNotified // the log has the reason why they cannot be received
	if over, ok := errors.AsType[*LimitError](err); ok {
		why = over
	} else if errors.Is(err, errOvertaken) {
		why = errOvertaken
	}
	return &openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeGatewayTimeout,
		Message: fmt.Sprintf("the %s instance did not answer in time: %s", role, why)}
}

// LostError returns the client's error for an answer that ended, because of err, after it
// was committed, or before if err is ErrStopping.
func LostError(err error) *openai.Error {
	if errors.Is(err, ErrStopping) {
		return unavailable(ErrStopping.Error())
	}
	if over, ok := errors.AsType[*LimitError](err); ok {
		e := timedOut(instance.Decode, over)
		e.Message = "the decode instance stopped in the middle of the answer: " + over.Error()
		return e
	}
	return badGateway("the decode instance was lost in the middle of the answer")
}

// untrusted returns an error that names only the reason. Hosts and certificate authorities
// of the fleet are not for clients; they are in the log.
func untrusted(role instance.Role, why certs.Reason) *openai.Error {
	return badGateway(fmt.Sprintf("TLS between the proxy and the %s instance failed (%s); this is a configuration error of the fleet; see the log of the proxy", role, why))
}

func badGateway(message string) *openai.Error {
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway, Message: message}
}

// JudgeStatus judges an answer whose status is not 200. Its body is not read yet.
func (l *Leg) JudgeStatus(status int, header http.Header) *Failure {
	in := l.Instance
	theirs := Answer{Status: status, Header: header}
	err := fmt.Errorf("%s answered %d", in.Key, status)
	switch {
	case isBusy(status):
		return l.failed(Busy, theirs, err)
	case (status == http.StatusUnauthorized || status == http.StatusForbidden && !l.origin.Optional) && l.ownKey:
		l.origin.Settings.Log.WithField("instance", in.Key.String()).
			Errorf("engine refused the proxy's key with %d: check --engine-api-key", status)
		return l.failed(EngineKey, ProxyError(badGateway(
			"the engines refuse the proxy's key for them; this is a configuration error of the proxy (--engine-api-key)")), err)
	case status == http.StatusNotFound && l.origin.Model != "" && in.ServesModel(l.origin.Model):
		// The record promises the model: the instance is wrong, not the client.
		return l.failed(ModelMissing, theirs, err)
	case status >= 400 && status < 500:
		return l.failed(Status4xx, theirs, err)
	case status == http.StatusServiceUnavailable:
		return l.failed(Unavailable503, theirs, err)
	case status >= 500:
		return l.failed(Status5xx, theirs, err)
	default:
		return l.JudgeBadAnswer(fmt.Sprintf("status %d", status))
	}
}

func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == http.StatusTooEarly
}

// NoSuchRoute is the body of FastAPI's 404 for a route that vLLM does not have.
const NoSuchRoute = `{"detail":"Not Found"}`

// saturated reports whether an error is that of a vLLM that admits no further request
// (--max-num-queued-reqs, --max-num-queued-tokens), or a 429. The error type is the text of
// the status; vLLM's other 503s, such as that of a paused engine, have another type.
func saturated(status int, body []byte) bool {
	return status == http.StatusTooManyRequests ||
		status == http.StatusServiceUnavailable && string(jsonscan.FindText(body, 0, "error", "type")) == http.StatusText(status)
}

// JudgeBody judges a refusal again when its body has been read. Only the body distinguishes a
// missing route from a missing model, a data-parallel rank that the engine does not have from an
// invalid request, and a full queue from an engine that cannot serve.
func (l *Leg) JudgeBody(f *Failure, body []byte) *Failure {
	if (f.Class == Busy || f.Class == Unavailable503) && saturated(f.Answer.Status, body) {
		f = l.failed(Busy, f.Answer, f.Err)
		if f.Answer.Header.Get("Retry-After") == "" && f.Answer.Header.Get("Retry-After-Ms") == "" { // vLLM sends none
			f.Answer.Header = f.Answer.Header.Clone() // the map may be shared with other answers
			f.Answer.Header.Set("Retry-After", strconv.Itoa(int(RetryWait.Seconds())))
		}
		return f
	}
	if f.Class == ModelMissing && string(body) == NoSuchRoute {
		return l.failed(Status4xx, f.Answer, f.Err)
	}
	if f.Class != Status4xx || f.Answer.Status != http.StatusBadRequest || l.pick == nil || l.Instance.Ranks() == 1 {
		return f
	}
	if !strings.HasPrefix(string(jsonscan.FindText(body, 0, "error", "message")), fmt.Sprintf("data_parallel_rank %d is out of range", l.pick.Rank)) {
		return f
	}
	return l.failed(RankMissing, ProxyError(Unavailable(l.Instance.Role, l.origin.Model)), fmt.Errorf("%s has no rank %d", l.Instance.Key, l.pick.Rank))
}

// JudgeEvent judges an error event that came before the answer was committed. body is
// the error in it, as JSON.
func (l *Leg) JudgeEvent(code int, body []byte) *Failure {
	if !json.Valid(body) {
		return l.JudgeBadAnswer("an error event that is not JSON")
	}
	a := Answer{Status: code, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}
	err := fmt.Errorf("%s sent an error event (%d)", l.Instance.Key, code)
	if saturated(code, body) {
		f := l.JudgeBody(l.failed(Busy, a, err), body)
		f.Taken = true // the header has already arrived
		return f
	}
	if code >= 400 && code < 500 && !isBusy(code) {
		return l.JudgeBody(l.failed(Status4xx, a, err), body)
	}
	if code < 400 {
		a.Status = http.StatusInternalServerError
	}
	return l.failed(ErrorEvent, a, err)
}

// JudgeCut judges again the failure of a prefill leg whose answer the proxy cut after one token.
// An engine may not be able to parse that, for example half a tool call (aloneCases in
// test/e2e). It then answers 500 on the routes of Messages and Responses, and 400 on the others.
func (l *Leg) JudgeCut(f *Failure, k openai.Kind) *Failure {
	if f.Class == Status4xx && f.Answer.Status == http.StatusBadRequest ||
		f.Class == Status5xx && (k == openai.Messages || k == openai.Responses) && f.Answer.Status == http.StatusInternalServerError {
		return l.failed(OurEdit, f.Answer, f.Err)
	}
	return f
}

// JudgeTooLarge judges an answer with a part, named by what, that is larger than the proxy accepts.
func (l *Leg) JudgeTooLarge(what string) *Failure {
	return l.failed(TooLarge, ProxyError(tooLarge(l.Instance.Role, what)), fmt.Errorf("%s: too large: %s", l.Instance.Key, what))
}

func tooLarge(role instance.Role, what string) *openai.Error {
	return badGateway(fmt.Sprintf("the %s instance sent an answer that is too large: %s", role, what))
}

// JudgeNoMemory judges an answer for which other requests have left too little memory for bodies.
func (l *Leg) JudgeNoMemory() *Failure {
	return l.failed(TooLarge, ProxyError(unavailable("this proxy has no memory left for the answer (--max-bodies-memory); try again")),
		fmt.Errorf("%s: not enough memory for its answer", l.Instance.Key))
}

// JudgeFinish judges an answer that the engine itself ended.
func (l *Leg) JudgeFinish(class Class) *Failure {
	return l.failed(class, ProxyError(unavailable("the instance aborted the request before it began to answer; try again")),
		fmt.Errorf("%s ended the request without an answer: %s", l.Instance.Key, class))
}

// JudgeBadAnswer judges an answer that no working engine sends; what describes the answer.
func (l *Leg) JudgeBadAnswer(what string) *Failure {
	return l.failed(BadAnswer, ProxyError(badGateway(fmt.Sprintf("the %s instance sent an answer that cannot be used: %s", l.Instance.Role, what))),
		fmt.Errorf("%s: %s", l.Instance.Key, what))
}
