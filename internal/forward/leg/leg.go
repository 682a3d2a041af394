package leg

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// Leg is the lifetime of one request to an engine, as a context. It ends when the client
// leaves, when a limit of the proxy expires, when its instance is known to be removed, or
// when the caller ends it. Its end closes the connection of an unfinished answer, which
// makes vLLM abort the request. context.Cause returns why it ended.
type Leg struct {
	context.Context //nolint:containedctx // a leg is one
	Instance        *instance.Instance
	Span            *tracing.Span // in the trace of its request; nil: none
	Began           time.Time

	// Recheck is called before the answer is committed, and may cancel the leg; nil: nothing is checked.
	Recheck func()
	// Once reports whether the request names a single-use KV transfer, so that the engine must
	// not receive it twice. Decode would wait in vain, or read blocks that were freed.
	Once bool

	origin *Origin
	pick   *sched.Assignment // nil for a leg of Ask, which sched cannot call off
	cancel context.CancelCauseFunc
	wait   Wait
	// ownKey reports whether a refused key is the proxy's; see authorize.
	ownKey bool

	timer *time.Timer // of limit
	lease *time.Timer // of Wait.KVUntil; nil without it

	mu     sync.Mutex // guards the fields below
	limit  Limit
	due    time.Time     // when timer should fire
	silent time.Duration // time without progress of the answer when timer was last set
	armed  time.Duration // last duration of timer
	// waitsForPartner is Wait.Partner until the other leg is done: timer does nothing.
	waitsForPartner bool
	committed       bool // CallOff does nothing any more
	// kvUntil is when the lease of the KV cache ends, zero if that does not end the leg any more.
	kvUntil time.Time
	// doubt is why a silence of streamSilence ends the leg, nil if it does not; see Watch.
	doubt error
}

var (
	_ context.Context = (*Leg)(nil)
	_ sched.Leg       = (*Leg)(nil)
	_ sched.Leg       = RemovalFunc(nil)
)

// Send sends the leg's request and returns the answer once its header has arrived. It is
// called once.
func (l *Leg) Send(method, path string, h Header, body splice.Body) (*upstream.Response, error) {
	o := l.origin
	l.ownKey = h.ownKey
	o.Trace.Inject(l.Span, h.fields)
	l.Span.Sent(method, path)
	r := upstream.Request{Instance: l.Instance, Method: method, Path: path, Header: h.fields, Body: body.Segments(), Once: l.Once}
	defer o.HoldBody()()
	if r.Body != nil && !o.Settings.Upstream.ReleasesBody(&r) {
		o.readAfterSend.Store(true)
	}
	resp, err := o.Settings.Upstream.Do(l, &r)
	if err == nil {
		l.Span.Answered(resp.Status)
		// The API server sends the header of a stream before the engine's core has seen the
		// request, and answers invalid requests itself.
		if resp.Status == http.StatusOK && !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			l.Progressed()
		}
	}
	return resp, err
}

// Progressed records progress of the engine's core: bytes of an answer that it has computed.
func (l *Leg) Progressed() {
	if l.pick != nil {
		l.pick.NoteProgress()
	}
}

// Answered records that the first content of the answer has arrived.
func (l *Leg) Answered() {
	if l.pick != nil {
		l.pick.Answered()
	}
}

// Commit marks the answer as about to be committed: from now on, CallOff does not end the leg, even if
// its instance is removed. If the leg has already ended, Commit returns the cause, and nothing more of
// the answer can be read. For a complete answer, it returns nil even then, unless decode may have read
// other blocks than those of its prompt. In that case the cause is ErrSource or the end of the KV lease.
func (l *Leg) Commit(complete bool) error {
	if l.Recheck != nil {
		l.Recheck()
	}
	if l.lease != nil {
		l.leaseEnded() // its timer may be late, after a stall of the machine
	}
	l.mu.Lock()
	l.committed = true
	if l.waitsForPartner {
		l.waitsForPartner = false
		l.arm(l.limit.After)
	}
	l.mu.Unlock()
	l.Answered()
	l.stopWaiting()
	cause := context.Cause(l)
	if limit, ok := errors.AsType[*LimitError](cause); complete && !errors.Is(cause, ErrSource) && !(ok && limit.Limit.Class == TransferExpired) {
		return nil
	}
	return cause
}

// stopWaiting stops the checks of a leg whose answer is not committed.
func (l *Leg) stopWaiting() {
	if l.lease != nil {
		l.lease.Stop()
	}
	if l.pick != nil {
		l.pick.EndAwait()
	}
}

// CallOff implements sched.Leg: it ends the leg unless Commit came first.
func (l *Leg) CallOff(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.committed {
		l.cancel(cause)
	}
}

// transferSlack is the maximum time that a leg may have waited before the silence of its instance began.
const transferSlack = 2 * time.Second

// Silent implements sched.Leg: the instance has answered neither legs nor probes for d. Its limit,
// Wait.Silence, also applies while the leg waits for its partner: an instance that waits for a KV cache
// answers probes. A single-use KV cache must not be read after its lease has ended; see leaseEnded.
func (l *Leg) Silent(d time.Duration) {
	waited := time.Since(l.Began)
	switch {
	case !l.wait.KVUntil.IsZero() && d >= waited-transferSlack && time.Now().After(l.wait.KVUntil):
		l.CallOff(&LimitError{l.wait.KVLimit})
	case l.wait.Silence.After > 0 && min(d, waited) >= l.wait.Silence.After:
		l.CallOff(&LimitError{l.wait.Silence})
	}
}

// Overtaken implements sched.Leg. It ignores a leg whose first content is not visible,
// because n short answers may overtake a long one, and a leg that waits for its partner.
func (l *Leg) Overtaken(n int) {
	l.mu.Lock()
	stuck := l.wait.Streamed && !l.wait.Patient && !l.waitsForPartner
	l.mu.Unlock()
	if stuck {
		l.CallOff(fmt.Errorf("%w: %d requests that began later there have been answered", errOvertaken, n))
	}
}

// Connector returns the dialect of the leg's instance, "" for a leg without a pick.
func (l *Leg) Connector() string {
	if l.pick == nil {
		return ""
	}
	return l.pick.Connector
}

// streamSilence is the silence that ends a committed leg whose instance is lost or hung. An ejected
// instance that still streams keeps its streams. It is measured in steps, so that a suspension of this
// process counts as one step at most.
const streamSilence, silenceStep = 5 * time.Second, time.Second

// ShouldMove reports whether another instance should continue the leg's stream.
func (l *Leg) ShouldMove() bool { return l.pick != nil && l.pick.ShouldMove() }

// Watch makes a committed leg end soon if its instance is lost or hung: another leg will continue
// its answer. Without Watch, only a limit ends it, because an earlier end would not help the client.
func (l *Leg) Watch() {
	if l.pick != nil {
		RemovalFunc(l.doubtStream).Watch(l.pick)
	}
}

// doubtStream makes the leg end after a silence of streamSilence.
func (l *Leg) doubtStream(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doubt == nil && l.Err() == nil {
		l.doubt = cause
		l.arm(streamSilence)
	}
}

// RemovalFunc is called when the instance of a pick is removed. The leg of the pick is
// committed, not sent yet, or not the one to end. RemovalFunc implements sched.Leg.
type RemovalFunc func(cause error)

// Watch makes sched call f if the instance of a pick is removed before its EndAwait. The pick never counts
// as waiting.
func (f RemovalFunc) Watch(a *sched.Assignment) { a.Await(f, time.Now().Add(noWait)) }

// noWait is longer than any request takes.
const noWait = 365 * 24 * time.Hour

// CallOff implements sched.Leg.
func (f RemovalFunc) CallOff(cause error) { f(cause) }

// Overtaken implements sched.Leg.
func (RemovalFunc) Overtaken(int) {}

// Silent implements sched.Leg.
func (RemovalFunc) Silent(time.Duration) {}

// End ends the leg, if it has not ended yet, and releases its resources. It may be called more than once.
func (l *Leg) End() {
	l.mu.Lock()
	l.committed = true
	l.mu.Unlock()
	l.stopWaiting()
	l.timer.Stop()
	l.cancel(errDone)
	l.Span.End()
}

// Ask sends one request to an instance that was not picked and returns its answer. Only
// the limit and the client end the leg early. The caller ends it.
func (o *Origin) Ask(in *instance.Instance, limit time.Duration, method, path string, h Header, body splice.Body) (*Leg, *upstream.Response, error) {
	l := o.newLeg(in, nil, Wait{Limit: Limit{After: limit, Class: FirstByteTimeout, Setting: "a fixed limit", Firm: true}})
	resp, err := l.Send(method, path, h, body)
	return l, resp, err
}
