package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// The ways a request can end, as in metrics and the access log.
const (
	OutcomeOK          = "ok"
	OutcomeClientError = "client_error" // the client's mistake, as reported by the proxy or the engine
	OutcomeClientGone  = "client_gone"
	OutcomeUnavailable = "unavailable" // no instance could serve it
	OutcomeUpstream    = "upstream_error"
	OutcomeBroken      = "broken" // committed, then lost
)

// StatusClientGone is logged for a client that left before its answer.
const StatusClientGone = 499

// Result is the outcome of an answer.
type Result struct {
	Status  int
	Outcome string        // see OutcomeOK
	Failure leg.Class     // of the leg whose failure the client got
	Bytes   int64         // of the body
	TTFT    time.Duration // 0 if nothing was committed
	Gap     time.Duration // mean time between two events of a stream; 0 if there was none
	// Tokens are the counts that prefill and the answer report. For a stream without a usage,
	// Output is the number of its events from the first content on.
	response.Tokens
	// Broken reports whether the client's connection must be broken instead of ended cleanly.
	Broken bool
	// Late is the status of an answer whose header a keep-alive had sent before; 0 if the
	// client got the status in the status line.
	Late int
}

// Computed reports whether engines have worked for the request: a leg has begun, and the
// answer is not an error. If the client has left, the last leg must not have been refused.
func (a *Answer) Computed() bool {
	return a.Times.At(stage.Sent) != 0 && (a.Outcome == OutcomeClientGone && a.Times.At(stage.Refused) == 0 || cmp.Or(a.Late, a.Status) < http.StatusBadRequest)
}

// Route adds the route of the request to the header of an answer, as far as the client may see it.
type Route interface{ Header(h http.Header) }

// Observer records durations in seconds. A prometheus.Observer is one.
type Observer interface{ Observe(seconds float64) }

// Answer is the answer to one client. It belongs to one goroutine.
type Answer struct {
	Client Client
	Kind   openai.Kind     // of the request: the form of streams and of errors in them
	Errors openai.Kind     // the form of an error that is the whole answer
	Ctx    context.Context //nolint:containedctx // the client's, as long as the answer
	ID     string          // the request's X-Request-Id
	Times  *stage.Times    // of the request; the first content is timed from its start
	Idle   time.Duration   // between two reads of an engine's answer; twice that for a write to the client
	Route  Route
	Log    logrus.FieldLogger
	Memory *scratch.Bodies // bounds the memory of bytes that are held back; nil: no bound
	// Generates reports whether an answer of the kind Other is generated, so that it may report tokens.
	Generates bool
	// Gaps receives the times between the events of a stream; nil if they are not recorded.
	Gaps Observer
	// Model puts the model that the client named into the answer; nil: the engine's name stays.
	Model *ModelName

	Result

	keep          keepAlive
	lost          *leg.Failure // failure of the last leg, until another leg continues the stream; else nil
	pace          pace
	counted       int       // Tokens.Output if no leg reports it
	sequence      int       // sequence_number of the next event of /v1/responses
	writeDeadline time.Time // guarded by keep
	lastWrite     time.Time // when the last write of the answer began
}

// Refuse answers with an error of the proxy. An error that is not an *openai.Error is a
// bug: it is answered as an internal error.
func (a *Answer) Refuse(err error) {
	var e *openai.Error
	if !errors.As(err, &e) {
		e = &openai.Error{Status: http.StatusInternalServerError, Type: openai.TypeInternal, Message: err.Error()}
	}
	a.StopKeepAlive()
	if a.lost != nil {
		a.breakLost()
		return
	}
	a.Status = e.Status
	switch {
	case e.Status < 500:
		a.Outcome = OutcomeClientError
	case e.Status == http.StatusServiceUnavailable:
		a.Outcome = OutcomeUnavailable
	default:
		a.Outcome = OutcomeUpstream
	}
	if a.keep.begun {
		var more []string
		if e.RetryAfter > 0 {
			more = []string{"Retry-After", e.RetryAfterSeconds()}
		}
		a.failInStream(e.Status, a.Kind.ErrorEvent(e, a.sequence), more...)
		return
	}
	a.addProxyHeader()
	a.Bytes += int64(a.Errors.WriteError(a.Client, e))
}

// CloseAfter closes the client's connection after this answer: the rest of the request's
// body is not read.
func (a *Answer) CloseAfter() { a.Client.Header().Set("Connection", "close") }

// ClientGone ends a request whose context has ended: the client has left, or gets an error because the proxy
// is stopping.
func (a *Answer) ClientGone() {
	if cause := context.Cause(a.Ctx); errors.Is(cause, leg.ErrStopping) {
		a.Refuse(leg.LostError(cause))
		return
	}
	a.clientLeft()
}

// endCommitted is ClientGone for a committed answer. events reports whether it is a stream.
func (a *Answer) endCommitted(events bool) {
	if cause := context.Cause(a.Ctx); errors.Is(cause, leg.ErrStopping) {
		a.breakOff(events, "", cause)
		return
	}
	a.clientLeft()
}

// clientLeft records that the client has left.
func (a *Answer) clientLeft() {
	a.Status, a.Outcome = StatusClientGone, OutcomeClientGone
	a.Broken = true // a client whose connection is half open must not read a clean end
}

// SendFailure answers with the failure of a leg.
func (a *Answer) SendFailure(f *leg.Failure) {
	if f.Class == leg.ClientGone || a.Ctx.Err() != nil {
		a.ClientGone()
		return
	}
	if a.lost != nil {
		a.breakLost()
		return
	}
	a.Failure = f.Class
	if f.Answer.Own != nil {
		a.Refuse(f.Answer.Own)
		return
	}
	a.SendWhole(f.Answer)
}

// SendWhole answers with a whole answer of an engine.
func (a *Answer) SendWhole(whole leg.Answer) {
	a.StopKeepAlive()
	a.Status = whole.Status
	switch {
	case whole.Status < 400:
		a.Outcome = OutcomeOK
	case whole.Status < 500:
		a.Outcome = OutcomeClientError
	default:
		a.Outcome = OutcomeUpstream
	}
	if a.keep.begun {
		a.failInStream(whole.Status, a.Kind.ErrorEventOf(whole.Status, whole.Body, a.sequence))
		return
	}
	a.copyHeader(whole.Header, int64(len(whole.Body)))
	a.Client.WriteHeader(whole.Status)
	a.writeLocked(whole.Body) // a client that left needs no error
}

// JSON answers with a value of the proxy, status 200.
func (a *Answer) JSON(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		a.Refuse(err)
		return
	}
	a.Status, a.Outcome = http.StatusOK, OutcomeOK
	a.Client.Header().Set("Content-Type", "application/json")
	a.Client.Header().Set("Content-Length", strconv.Itoa(len(b)))
	a.SetRequestID()
	a.Client.WriteHeader(http.StatusOK)
	a.writeLocked(b) // a client that left needs no error
}

// sendHeader sends the engine's status and header, or only the proxy's fields, as a comment, if a
// keep-alive has sent a header already. length is the Content-Length, -1 to leave it to the server.
func (a *Answer) sendHeader(resp *upstream.Response, length int64) {
	a.TTFT = time.Since(a.Times.Start)
	a.Status = resp.Status
	a.keep.mu.Lock()
	defer a.keep.mu.Unlock()
	if a.keep.begun {
		if why := a.reasons(); why != nil {
			a.writeLocked(why) // the next write notices if the client has left
		}
		return
	}
	a.keep.header = true
	a.copyHeader(resp.Header, length)
	a.Client.WriteHeader(resp.Status)
}

// copyHeader copies the engine's header to the client. length is the Content-Length, -1 to
// leave it to the server.
func (a *Answer) copyHeader(from http.Header, length int64) {
	to := a.Client.Header()
	varies := to["Vary"]
	for name, values := range from {
		if leg.PassesToClient(name) {
			to[name] = values
		}
	}
	if varies != nil && !slices.Equal(varies, to["Vary"]) {
		to["Vary"] = append(varies, from["Vary"]...) // the proxy's Vary is for CORS, the engine's applies as well
	}
	if about := from.Get("Metadata"); about != "" && a.Model != nil { // of embeddings as bytes
		to["Metadata"] = []string{string(a.Model.Rewrite([]byte(about)))}
	}
	leg.DropNamed(to, from["Connection"])
	if isEventStream(from.Get("Content-Type")) {
		noBuffering(to)
	}
	if length >= 0 {
		to["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	a.addProxyHeader()
}

// noBuffering makes nginx pass events on at once. By default, it holds them back until its buffer is full.
func noBuffering(h http.Header) { h["X-Accel-Buffering"] = []string{"no"} }

// SetRequestID sets X-Request-Id in the answer.
func (a *Answer) SetRequestID() { a.Client.Header()["X-Request-Id"] = []string{a.ID} }

// addProxyHeader adds the header fields of the proxy.
func (a *Answer) addProxyHeader() {
	a.SetRequestID()
	if a.Route != nil {
		a.Route.Header(a.Client.Header())
	}
}

// write sends and flushes bytes to the client; it reports false if the client has left.
func (a *Answer) write(b []byte) bool { return a.send(b, true) }

// send is write; without flush, the server may buffer the bytes.
func (a *Answer) send(b []byte, flush bool) bool {
	a.keep.mu.Lock()
	defer a.keep.mu.Unlock()
	at, ok := a.writeLocked(b)
	a.keep.relayed = true
	if ok && flush {
		a.Client.Flush()
	}
	if a.lastWrite = at; !ok {
		a.clientLeft()
	}
	return ok
}

// maxWrite is the number of bytes that are written under one deadline.
const maxWrite = 32 << 10

// writeLocked writes to the client, and returns when it began. The caller holds keep.mu or
// has stopped keep.
func (a *Answer) writeLocked(b []byte) (at time.Time, ok bool) {
	at = time.Now()
	for now := at; ; now = time.Now() {
		a.keep.last = now
		if a.writeDeadline.Sub(now) < 2*a.Idle*7/8 {
			// A client that stops reading must not keep an instance busy forever. A write may wait until the
			// client has read 190 kB, or 630 kB with a large receive buffer: Linux announces free space in large
			// steps. The deadline is moved rarely, because that takes longer than the write.
			a.writeDeadline = now.Add(2 * a.Idle)
			_ = a.Client.SetWriteDeadline(a.writeDeadline) // not supported: no deadline
		}
		n, err := a.Client.Write(b[:min(len(b), maxWrite)])
		a.Bytes += int64(n)
		if b = b[n:]; err != nil || len(b) == 0 {
			return at, err == nil
		}
	}
}

// breakOff breaks the connection of a committed answer that cannot be completed; in a
// stream, it sends an error event first. class is the kind of failure.
func (a *Answer) breakOff(events bool, class leg.Class, cause error) {
	a.StopKeepAlive()
	a.Log.WithError(cause).WithField("request_id", a.ID).Warn("answer lost after it was committed")
	if events && !errors.Is(cause, errEngineEvent) {
		e := leg.LostError(cause)
		if class == leg.TooLarge {
			e.Message = "the answer was broken off in the middle: the decode instance sent more at once than this proxy holds" // cause names the instance
		}
		if !a.write(a.Kind.ErrorEvent(e, a.sequence)) {
			return
		}
	}
	a.Failure, a.Outcome, a.Broken = class, OutcomeBroken, true
}

// breakLost ends a stream that no leg continues, with the error of the leg that was lost.
func (a *Answer) breakLost() {
	f := a.lost
	a.lost = nil
	if f.Answer.Own == nil {
		a.StopKeepAlive()
		if !a.write(a.Kind.ErrorEventOf(f.Answer.Status, f.Answer.Body, a.sequence)) {
			return
		}
		a.breakOff(false, f.Class, f.Err)
		return
	}
	a.breakOff(true, f.Class, f.Err)
}

// Complete sends the events that complete a stream whose leg was lost.
func (a *Answer) Complete(events []byte) {
	a.lost = nil
	a.StopKeepAlive()
	if a.Model != nil {
		events = RewriteEvents(a.Model, events)
	}
	a.noteEvents(events)
	if a.write(append(a.continuedComment(), events...)) {
		a.Outcome = OutcomeOK
	}
}

// Continuation continues a stream on another leg after its leg was lost.
type Continuation interface {
	// Pass records whole events of a leg, and returns them edited for the client. It may use
	// their memory. An error means that the leg does not continue the stream.
	Pass(events []byte) ([]byte, error)
	// MayMove reports whether another leg may continue the stream now, although its leg l has not failed.
	MayMove(l *leg.Leg) bool
	// Continues reports whether another leg may continue the stream after this failure.
	Continues(f *leg.Failure) bool
}

// Rewriter rewrites a response for the client.
type Rewriter interface {
	// Affects is a fast check whether Rewrite may change a response, or one or more complete server-sent events.
	Affects(b []byte) bool
	// Rewrite rewrites a response without a stream, or one event. It may return the same bytes.
	Rewrite(b []byte) []byte
}

// RewriteEvents applies a Rewriter to complete server-sent events.
func RewriteEvents(r Rewriter, batch []byte) []byte {
	if !r.Affects(batch) {
		return batch
	}
	out := make([]byte, 0, len(batch)+8)
	for {
		event, rest, ok := sse.NextEvent(batch)
		if !ok {
			return append(out, batch...)
		}
		if r.Affects(event) {
			event = r.Rewrite(event)
		}
		out = append(out, event...)
		batch = rest
	}
}

// Source is an engine's answer and how it is relayed.
type Source struct {
	Leg  *leg.Leg
	Resp *upstream.Response
	// Commit is called once, when the answer is committed: no failure is hidden
	// from then on.
	Commit func()
	// Rewriters change the answer, in this order.
	Rewriters []Rewriter
	// GivesUp is the stop reason by which an engine of this kind reports that it has aborted
	// an answer; "" if there is none.
	GivesUp string
	// Continuation is nil if the answer is not continued.
	Continuation Continuation
	// Replays reports whether the leg repeats the answer from its start.
	Replays bool
}

// judgeEnd returns a failure if an answer, or an event that would commit it, shows that the engine aborted
// the request; nil if it does not.
func (s *Source) judgeEnd(kind openai.Kind, b []byte) *leg.Failure {
	switch {
	case len(b) == 0 && kind != openai.Other:
		return s.Leg.JudgeBadAnswer("it is empty")
	case sse.Aborted(kind, b):
		return s.Leg.JudgeFinish(leg.Aborted)
	case s.GivesUp != "" && sse.StopsBy(b, s.GivesUp):
		return s.Leg.JudgeFinish(leg.GaveUp)
	}
	return nil
}

// Relay relays an answer with status 200. A failure means that nothing of it was sent to
// the client or, with Failure.Begun, that another leg must continue it. nil means that the
// client has been answered, completely or with a broken connection.
func (a *Answer) Relay(s Source) *leg.Failure {
	s.Leg.SetLimit(leg.IdleLimit(a.Idle))
	if a.Model != nil {
		s.Rewriters = append(s.Rewriters, a.Model)
	}
	if isEventStream(s.Resp.Header.Get("Content-Type")) {
		return a.stream(&s)
	}
	if a.lost != nil {
		return s.Leg.JudgeBadAnswer("no stream")
	}
	return a.whole(&s)
}
