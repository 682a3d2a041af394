package forward

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// maxHeldAnswer is how much of a non-streamed answer is read before the status
// goes out: up to here a broken answer can still be retried.
const maxHeldAnswer = 1 << 20

// unknownAnswer is the room that an answer of unknown length gets at first.
const unknownAnswer = 2 << 10

// doneGrace is how long the engine may take to end the connection's chunked
// body behind the closing event; later than that it is not reused.
const doneGrace = time.Second

func isEventStream(h http.Header) bool {
	return isMedia(firstOf(h["Content-Type"]), "text/event-stream")
}

// isMedia tells whether a Content-Type names that media type, with whatever
// parameters.
func isMedia(contentType, media string) bool {
	if contentType == media {
		return true // as nearly everybody writes it
	}
	if name, _, _ := strings.Cut(contentType, ";"); !strings.EqualFold(strings.TrimSpace(name), media) {
		return false
	}
	got, _, err := mime.ParseMediaType(contentType)
	return err == nil && got == media
}

// whole passes a non-streamed answer on. Nothing is sent before it has been
// read to its end, or to maxHeldAnswer.
func (x *exchange) whole(l *leg, d *sched.Assignment, resp *upstream.Response) *failure {
	buf, n, err := x.hold(l, resp)
	more := err == nil
	if more && resp.Length == int64(n) {
		more, err = false, io.EOF
		_ = drained(resp.Body, buf[n:n+1]) // every announced byte is here: the answer is whole
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return x.ofExchange(d.Instance, err)
	}
	if resp.Length > int64(n) && !more {
		return x.ofAnswer(d.Instance, "it is shorter than announced")
	}
	if cause := l.settle(); cause != nil && more {
		return x.calledOff(d.Instance, cause)
	}
	x.served(d.Instance)
	x.dropBody() // a client may be slow to read
	x.entry.TTFT = time.Since(x.entry.Start)
	x.now = x.entry.Start.Add(x.entry.TTFT) // no pick follows, which would want to know that a machine slept
	head, length := buf[:n], resp.Length
	if !more {
		// In an answer of more than maxHeldAnswer the number stays the engine's.
		head = x.trueUsage(head)
		length = int64(len(head))
	}
	x.entry.Status = resp.Status
	x.beginAnswer(resp, length)
	if !x.writeAt(x.now, head) {
		return nil
	}
	for more {
		l.rearm(x.h.opts.Idle)
		n, err = resp.Body.Read(buf)
		if n > 0 && !x.write(buf[:n]) {
			return nil
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				x.breakOff(false, err)
				return nil
			}
			more = false
		}
	}
	x.entry.Outcome = OutcomeOK
	return nil
}

// hold reads an answer to its end, which io.EOF tells, or as much of it as is held
// back: n bytes of buf, which has room for another if the length was told.
func (x *exchange) hold(l *leg, resp *upstream.Response) (buf []byte, n int, err error) {
	if resp.Length >= 0 {
		held := int(min(resp.Length, maxHeldAnswer))
		buf = x.answers.take(held+1, smallAnswers, mostAnswers)
		n, err = readFull(l, x.h.opts.Idle, resp.Body, buf[:held])
		return buf, n, err
	}
	buf = x.answers.take(unknownAnswer, smallAnswers, mostAnswers)
	for {
		var m int
		m, err = readFull(l, x.h.opts.Idle, resp.Body, buf[n:])
		n += m
		if err != nil || n == maxHeldAnswer {
			return buf, n, err
		}
		bigger := make([]byte, min(4*len(buf), maxHeldAnswer))
		copy(bigger, buf)
		buf = bigger
		l.rearm(x.h.opts.Idle)
	}
}

// readFull fills buf, for which the leg has its deadline; io.EOF means that the body
// ended before or exactly there.
func readFull(l *leg, idle time.Duration, r io.Reader, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		if n > 0 { // the first time is the caller's
			l.rearm(idle)
		}
		m, err := r.Read(buf[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// relay is the state of one event stream on its way through.
type relay struct {
	eventBuffer

	judged    int // of the buffered bytes, classified while the answer was not committed
	seen      int // of them, searched for an event's end
	committed bool
	done      bool // the closing event has come
	ended     bool // what is in buf is the last of the engine's answer
	typed     bool // see stream
	haste     haste
}

// stream passes an event stream on, event by event. Until the first event with
// content everything is held back and a failure can be retried. p is released
// at the commit: its KV has been pulled.
//
// typed streams (/v1/responses, /v1/messages) name their events and have no
// common closing one: their first event commits, and any clean end is taken.
func (x *exchange) stream(l *leg, d, p *sched.Assignment, resp *upstream.Response, typed bool) *failure {
	s := relay{typed: typed}
	defer s.release()
	body, _ := resp.Body.(upstream.Gatherer)
	for {
		s.gather(body)
		if !s.makeRoom() {
			return x.streamEnded(&s, x.ofAnswer(d.Instance, "an event of more than 8 MiB"))
		}
		if s.done {
			l.rearm(doneGrace)
		} else {
			l.rearm(x.h.opts.Idle)
		}
		m, err := resp.Body.Read(s.buf[s.n:])
		s.n += m
		if m > 0 {
			d.Heard()
			s.ended = errors.Is(err, io.EOF)
			if f, stop := x.relay(l, d, p, &s, resp); stop {
				return f
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			if s.done {
				return nil
			}
			if s.typed && s.committed && len(bytes.TrimLeft(s.buf[:s.n], "\r\n")) == 0 {
				x.entry.Outcome = OutcomeOK
				return nil
			}
			return x.streamEnded(&s, x.ofAnswer(d.Instance, "the event stream ended too early"))
		}
		if s.done {
			return nil // the answer was whole; how the connection ends is no matter
		}
		return x.streamEnded(&s, x.ofExchange(d.Instance, err))
	}
}

// relay deals with what one read brought. stop tells that the stream is over
// for the client or must be retried.
func (x *exchange) relay(l *leg, d, p *sched.Assignment, s *relay, resp *upstream.Response) (f *failure, stop bool) {
	if !s.committed {
		if f = x.judge(d, s); f != nil {
			return f, true
		}
		if !s.committed {
			return nil, false
		}
		if cause := l.settle(); cause != nil && !s.ended {
			return x.calledOff(d.Instance, cause), true
		}
		p.Done()
		x.served(d.Instance)
		x.dropBody()
		x.entry.TTFT = time.Since(x.entry.Start)
		x.entry.Status = resp.Status
		x.beginAnswer(resp, -1)
	}
	end := openai.EventEnd(s.buf[:s.n], s.seen)
	if end == 0 {
		s.seen = s.n
		return nil, false
	}
	failed, events := 0, 0 // end of an error event; how many there are
	for rest := s.buf[:end]; failed == 0; {
		event, tail, ok := openai.NextEvent(rest)
		if !ok {
			break
		}
		events++
		if openai.IsDone(event) {
			s.done = true
		} else if openai.LooksLikeError(event) {
			failed = end - len(tail)
		}
		rest = tail
	}
	if failed > 0 {
		// The engine's own error event goes out, its clean end does not.
		if x.write(x.trueUsageOfEvents(s.buf[:failed])) {
			x.breakOff(true, errEngineEvent)
		}
		return nil, true
	}
	if s.done {
		x.entry.Outcome = OutcomeOK
	}
	batch := x.trueUsageOfEvents(s.buf[:end])
	if s.done && s.ended {
		x.put(time.Now(), batch) // the server flushes it together with the end of the body
		return nil, true
	}
	if !x.write(batch) {
		return nil, true
	}
	s.haste.came(events, x.wrote)
	s.drop(end)
	s.seen = s.n
	return nil, false
}

// trueUsage puts the prefill instance's numbers about its cache into an answer.
func (x *exchange) trueUsage(b []byte) []byte {
	if x.prefilled == nil || !openai.HasCachedTokens(b) {
		return b
	}
	cached := openai.CachedTokens(x.prefilled)
	if cached.Tokens == "" {
		return b
	}
	return openai.SetCachedTokens(b, cached)
}

// trueUsageOfEvents does the same for a batch of events.
func (x *exchange) trueUsageOfEvents(batch []byte) []byte {
	if x.prefilled == nil || !openai.HasCachedTokens(batch) {
		return batch
	}
	out := make([]byte, 0, len(batch)+8)
	for {
		event, rest, ok := openai.NextEvent(batch)
		if !ok {
			return append(out, batch...)
		}
		out = append(out, x.trueUsage(event)...)
		batch = rest
	}
}

var errEngineEvent = errors.New("the engine reported an error in the stream")

// judge classifies the events held back, until one commits the answer.
func (x *exchange) judge(d *sched.Assignment, s *relay) *failure {
	for {
		event, _, ok := openai.NextEvent(s.buf[s.judged:s.n])
		if !ok {
			return nil
		}
		s.judged += len(event)
		class, code := openai.Classify(event)
		if s.typed && class == openai.EventPreamble {
			class = openai.EventContent
		}
		switch class {
		case openai.EventError:
			return x.ofEvent(d.Instance, code, event)
		case openai.EventContent, openai.EventDone:
			s.committed = true
			return nil
		case openai.EventPreamble:
		}
	}
}

// streamEnded decides what an early end means: before the commit a failure to
// hide, after it a broken stream to show.
func (x *exchange) streamEnded(s *relay, f *failure) *failure {
	if !s.committed {
		return f
	}
	if x.ctx.Err() != nil {
		x.gone()
		return nil
	}
	x.breakOff(true, f.err)
	return nil
}

// breakOff ends a committed answer that cannot be completed: in a stream an
// error event says so, and the connection is broken in any case.
func (x *exchange) breakOff(events bool, cause error) {
	x.entry.Outcome = OutcomeBroken
	x.broken = true
	x.h.opts.Log.WithError(cause).WithField("request_id", x.entry.RequestID).Warn("answer lost after it was committed")
	if events && !errors.Is(cause, errEngineEvent) {
		e := openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway,
			Message: "the decode instance was lost in the middle of the answer"}
		x.write(append(append([]byte("data: "), e.JSON()...), "\n\n"...))
		x.entry.Outcome = OutcomeBroken
	}
}

// write sends and flushes bytes to the client; false means that it is gone.
func (x *exchange) write(b []byte) bool { return x.writeAt(time.Now(), b) }

func (x *exchange) writeAt(now time.Time, b []byte) bool {
	if !x.put(now, b) {
		return false
	}
	if f, ok := x.w.(http.Flusher); ok {
		f.Flush()
	}
	return true
}

// put sends bytes to the client, in the server's own time.
func (x *exchange) put(now time.Time, b []byte) bool {
	x.wrote = now
	if x.writeDeadline.Sub(now) < x.h.opts.Idle/2 {
		// A client that stops reading must not hold an instance for ever. The
		// deadline is moved on seldom: it costs more than the write.
		x.writeDeadline = now.Add(x.h.opts.Idle)
		if w, ok := x.w.(interface {
			SetWriteLimit(now, t time.Time) error
		}); ok {
			_ = w.SetWriteLimit(now, x.writeDeadline)
		} else {
			_ = http.NewResponseController(x.w).SetWriteDeadline(x.writeDeadline)
		}
	}
	n, err := x.w.Write(b)
	x.entry.BytesOut += int64(n)
	if err != nil {
		x.gone()
		return false
	}
	return true
}
