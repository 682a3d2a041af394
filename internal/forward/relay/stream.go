package relay

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// doneGrace bounds the time until the engine ends the chunked body after the closing event.
// A connection that takes longer is not used again.
const doneGrace = time.Second

// isEventStream reports whether a Content-Type is that of an event stream, with any parameters.
func isEventStream(contentType string) bool {
	const media = "text/event-stream"
	if contentType == media {
		return true // as nearly all engines write it
	}
	if name, _, _ := strings.Cut(contentType, ";"); !strings.EqualFold(strings.TrimSpace(name), media) {
		return false
	}
	got, _, err := mime.ParseMediaType(contentType)
	return err == nil && got == media
}

// events is the state of one event stream that is relayed.
type events struct {
	scratch.Events

	classified int // bytes of Buf that judge has read, before the commit
	searched   int // bytes of Buf in which no event ends
	committed  bool
	finished   bool // a choice has a finish reason; only /inference/v1/generate needs it
	done       bool // the closing event has arrived
	failed     bool // the closing event reports that the answer has failed
	atEnd      bool // Buf has the last bytes of the engine's answer

	unsent   int // events that scan has counted and that have not been sent
	passed   int // events that scan has seen, without the closing one and keep-alives
	preamble int // events before the first content, or after it without a delta
}

// pace has the times between the events of one answer, over all of its legs.
type pace struct {
	last  time.Time     // when the last events went to the client; zero before the first
	later int           // number of events that were sent after the first batch
	span  time.Duration // from the first batch to the last
}

var (
	errEngineEvent = errors.New("the engine reported an error in the stream")
	errGaveUp      = errors.New("the engine gave up in the middle of the answer")
	errAborted     = errors.New("the engine aborted the request in the middle of the answer")
)

// stream relays an event stream, event by event. It holds back all events until the first
// one with content; until then, a failure can be retried.
func (a *Answer) stream(s *Source) *leg.Failure {
	e := events{Events: scratch.Events{Memory: a.Memory}}
	defer e.end(a, s.Replays)
	l := s.Leg
	for progress := true; ; {
		if err := e.MakeSpace(e.classified); err != nil {
			return a.streamEnded(s, &e, a.judgeSize(l, err))
		}
		switch {
		case e.done:
			l.SetLimit(leg.GraceLimit(doneGrace))
		case progress:
			l.Rearm(a.Idle)
		}
		m, err := s.Resp.Body.Read(e.Buf[e.N:])
		e.N += m
		if m > 0 {
			e.atEnd = errors.Is(err, io.EOF)
			before, committed := e.passed+e.preamble, e.committed
			if f, stop := a.handleRead(s, &e); stop {
				return f
			}
			// Keep-alives are no progress: the API server sends them even while the engine core hangs.
			progress = e.passed+e.preamble > before || e.N > e.classified && e.Buf[e.classified] != ':'
			if committed && progress {
				l.Progressed()
			}
		}
		switch {
		case err == nil:
		case e.done:
			return nil // the answer is complete; how the connection ends does not matter
		case !errors.Is(err, io.EOF):
			return a.streamEnded(s, &e, l.JudgeError(err))
		case a.Kind == openai.Other && e.committed && len(bytes.TrimLeft(e.Buf[:e.N], "\r\n")) == 0:
			a.Outcome = OutcomeOK
			return nil
		default:
			return a.streamEnded(s, &e, l.JudgeBadAnswer("the event stream ended too early"))
		}
	}
}

// judgeSize judges an answer that is too large to be held back, or for which there is no memory.
func (a *Answer) judgeSize(l *leg.Leg, err error) *leg.Failure {
	if errors.Is(err, scratch.ErrNoMemory) {
		a.Memory.Refuse()
		return l.JudgeNoMemory()
	}
	return l.JudgeTooLarge(err.Error())
}

// handleRead handles the bytes of one read. stop reports whether the stream is over for the
// client or, with a failure, must be retried.
func (a *Answer) handleRead(s *Source, e *events) (f *leg.Failure, stop bool) {
	if !e.committed {
		if f = a.judge(s, e); f != nil {
			return f, true
		}
		if !e.committed {
			return nil, false
		}
		if cause := s.Leg.Commit(e.atEnd); cause != nil {
			return s.Leg.JudgeCallOff(cause), true
		}
		e.classified = 0 // from now on, no whole event stays in Buf
		s.Commit()
		s.Leg.Progressed()
		s.Leg.Span.First()
		if a.lost == nil {
			a.Times.Pass(stage.First)
			a.sendHeader(s.Resp, -1)
		}
	}
	end := a.withoutClosing(s, e.Buf[:sse.EventEnd(e.Buf[:e.N], e.searched)])
	if end == 0 {
		e.searched = e.N
		return nil, false
	}
	if before, after, class, cause := e.scan(a.Kind, end, s.GivesUp); cause != nil {
		return a.failInEvents(s, e, before, after, class, cause), true
	}
	switch {
	case e.failed:
		a.Outcome = OutcomeUpstream
	case e.done:
		a.Outcome = OutcomeOK
	}
	if e.done {
		a.StopKeepAlive() // nothing follows the closing event
	}
	last := e.done && e.atEnd // the server flushes it together with the end of the body
	if !a.passOn(s, e, e.Buf[:end], !last) || last {
		return nil, true
	}
	e.Drop(end)
	e.searched = e.N
	if s.Continuation != nil && s.Leg.ShouldMove() && !e.done && s.Continuation.MayMove(s.Leg) {
		f = s.Leg.JudgeMoved()
		f.Begun, a.lost = true, f
		return f, true
	}
	return nil, false
}

// passOn sends whole events to the client. It returns false if the answer has ended.
func (a *Answer) passOn(s *Source, e *events, events []byte, flush bool) bool {
	batch, err := a.pass(s, e, events)
	if err != nil {
		a.breakOff(true, leg.BadAnswer, err)
		return false
	}
	a.noteEvents(batch)
	if len(batch) == 0 { // all events had token ids only
		return true
	}
	if !a.send(batch, flush) {
		return false
	}
	a.countSent(e)
	return true
}

// countSent counts the events of the batch that the last write sent: the first one has the gap since
// the previous batch, the others have none. The closing event does not count, nor do keep-alives.
func (a *Answer) countSent(e *events) {
	if e.unsent == 0 {
		return
	}
	if t := &a.pace; !t.last.IsZero() {
		gap := a.lastWrite.Sub(t.last)
		t.later += e.unsent
		t.span += gap
		if a.Gaps != nil {
			a.Gaps.Observe(gap.Seconds())
			for range e.unsent - 1 {
				a.Gaps.Observe(0)
			}
		}
	}
	a.pace.last, e.unsent = a.lastWrite, 0
}

// leaveOut lowers unsent to the number of these events: the client has the others from another leg.
func (e *events) leaveOut(events []byte) {
	n := 0
	for _, rest, ok := sse.NextEvent(events); ok; _, rest, ok = sse.NextEvent(rest) {
		n++
	}
	if e.done {
		n-- // the closing event
	}
	e.unsent = min(e.unsent, max(n, 0))
}

// end releases the buffer and reports the mean gap and the tokens. replays is Source.Replays.
func (e *events) end(a *Answer, replays bool) {
	if t := &a.pace; t.later > 0 {
		a.Gap = t.span / time.Duration(t.later)
	}
	if a.Tokens.Output == a.counted && a.reportsTokens() { // no leg has reported it
		n := max(0, e.passed-e.preamble)
		if replays {
			n = max(0, n-a.counted)
		}
		a.counted += n
		a.Tokens.Output = a.counted
	}
	e.Release()
}

// scan reads the events that end before end. If one of them breaks off the answer, scan returns
// its start and end, and the class and the cause of the failure. givesUp is Source.GivesUp.
func (e *events) scan(kind openai.Kind, end int, givesUp string) (before, after int, class leg.Class, cause error) {
	named := kind == openai.Responses || kind == openai.Messages
	for rest := e.Buf[:end]; ; {
		event, tail, ok := sse.NextEvent(rest)
		if !ok {
			return 0, 0, "", nil
		}
		before, after = end-len(rest), end-len(tail)
		if givesUp != "" && sse.StopsBy(event, givesUp) {
			return before, after, leg.GaveUp, errGaveUp
		}
		sign := sse.SignOf(kind, event)
		if kind == openai.Generate {
			sign = e.signOfGenerate(sign, event)
		}
		switch sign {
		case sse.SignError:
			return before, after, leg.ErrorEvent, errEngineEvent
		case sse.SignAborted:
			return before, after, leg.Aborted, errAborted
		case sse.SignFailedEnd:
			e.done, e.failed = true, true
		case sse.SignEnd:
			e.done = true
		case sse.SignNone:
			if !sse.KeepsAlive(kind, event) {
				e.unsent++
				if e.passed++; named && e.passed > e.preamble && !sse.IsDelta(event) {
					e.preamble++
				}
			}
		}
		rest = tail
	}
}

// signOfGenerate returns SignAborted for the end of a stream of /inference/v1/generate that no choice
// has finished. vLLM before 0.32 omits a finish reason without tokens, such as that of an abort.
func (e *events) signOfGenerate(sign sse.Sign, event []byte) sse.Sign {
	e.finished = e.finished || sse.Finished(event)
	if sign == sse.SignEnd && !e.done && !e.finished {
		return sse.SignAborted
	}
	return sign
}

// judge classifies the events that are held back, until one commits the answer.
func (a *Answer) judge(s *Source, e *events) *leg.Failure {
	for {
		event, _, ok := sse.NextEvent(e.Buf[e.classified:e.N])
		if !ok {
			return nil
		}
		keepsAlive := sse.KeepsAlive(a.Kind, event)
		if keepsAlive && a.keep.interval > 0 {
			a.passKeepAlive(event)
			e.Cut(e.classified, len(event))
			continue
		}
		e.classified += len(event)
		switch class, code := sse.Classify(a.Kind, event); class {
		case sse.EventError:
			return s.Leg.JudgeEvent(code, sse.ErrorOf(a.Kind, event))
		case sse.EventDone:
			if a.Kind != openai.Other {
				return s.Leg.JudgeFinish(leg.Aborted) // nothing was generated: vLLM omits the chunk of an abort
			}
			e.committed = true
			return nil
		case sse.EventContent:
			if f := s.judgeEnd(a.Kind, event); f != nil {
				return f
			}
			e.committed = true
			return nil
		case sse.EventPreamble:
			if !keepsAlive {
				e.preamble++
			}
		}
	}
}

// streamEnded handles an early end. Before the commit, it is a failure that can be retried.
// After it, another leg continues the stream, or the client's connection is broken.
func (a *Answer) streamEnded(s *Source, e *events, f *leg.Failure) *leg.Failure {
	if !e.committed {
		return f
	}
	if a.Ctx.Err() != nil {
		a.endCommitted(true)
		return nil
	}
	if s.Continuation != nil && s.Continuation.Continues(f) {
		f.Begun, a.lost = true, f
		return f
	}
	a.breakOff(true, f.Class, f.Err)
	return nil
}

// failInEvents handles an event that breaks a committed answer off, Buf[before:after].
func (a *Answer) failInEvents(s *Source, e *events, before, after int, class leg.Class, cause error) *leg.Failure {
	event := bytes.Clone(e.Buf[before:after]) // pass may use the buffer
	if before = a.withoutClosing(s, e.Buf[:before]); before > 0 && !a.passOn(s, e, e.Buf[:before], true) {
		return nil
	}
	if s.Continuation != nil {
		f := s.Leg.JudgeFinish(class)
		if class == leg.ErrorEvent {
			_, code := sse.Classify(a.Kind, event)
			f = s.Leg.JudgeEvent(code, sse.ErrorOf(a.Kind, event))
		}
		if s.Continuation.Continues(f) {
			f.Begun, a.lost = true, f
			return f
		}
	}
	// The client gets the engine's own error event, but not its clean end.
	if class != leg.ErrorEvent || a.write(event) {
		a.breakOff(true, class, cause)
	}
	return nil
}

// withoutClosing returns the length of whole events without the last ones that close a block, if the
// stream may be continued. An engine of /v1/messages sends those even before it reports an abort.
func (a *Answer) withoutClosing(s *Source, events []byte) int {
	for s.Continuation != nil && a.Kind == openai.Messages && len(events) > 0 {
		start := sse.EventEnd(events[:len(events)-1], 0)
		if !sse.ClosesBlock(events[start:]) {
			break
		}
		events = events[:start]
	}
	return len(events)
}

// continuedComment returns the comment that precedes the events of a leg that continues the
// stream. It has the fields about the leg's route that the client may see.
func (a *Answer) continuedComment() []byte {
	if route := a.reasons(); route != nil {
		return append([]byte(": continued\n"), route...)
	}
	return []byte(": continued\n\n")
}

// pass returns whole events edited for the client. An error means that they do not belong
// to the client's answer.
func (a *Answer) pass(s *Source, e *events, events []byte) ([]byte, error) {
	if s.Continuation != nil {
		var err error
		if events, err = s.Continuation.Pass(events); err != nil {
			return nil, err
		}
		if a.lost != nil || s.Replays {
			e.leaveOut(events)
		}
	}
	for _, r := range s.Rewriters {
		events = RewriteEvents(r, events)
	}
	if a.lost != nil {
		a.lost = nil
		events = append(a.continuedComment(), events...)
	}
	return events, nil
}
