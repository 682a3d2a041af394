package leg

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/tracing"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// Leg is the lifetime of one request to an engine, as a context: it ends with
// the client, by a deadline of the proxy, when its instance is known to be gone, or
// when the caller has finished with it. Ending it closes the connection of an
// unfinished answer, which is what makes vLLM abort the work.
//
// context.Cause gives why it ended.
type Leg struct {
	context.Context //nolint:containedctx // a leg is one
	Instance        *instance.Instance
	Span            *tracing.Span // in the trace of its request; nil: none
	Began           time.Time

	origin *Origin
	pick   *sched.Assignment // nil for a leg of Ask, which sched cannot call off
	cancel context.CancelCauseFunc
	wait   Wait
	// ownKey tells that a refused key is the proxy's; see authorize.
	ownKey bool

	timer   *time.Timer
	partner atomic.Int64 // Wait.Partner, 0 once the other leg is done

	mu         sync.Mutex    // guards what follows
	duration   time.Duration // what the timer was last set to, without partner
	limitCause error         // the cause with which the timer ends the leg
	committed  bool          // CallOff does nothing any more
}

var (
	_ context.Context = (*Leg)(nil)
	_ sched.Leg       = (*Leg)(nil)
)

// Send sends the leg's request and gives the answer once its header is there. It is
// called once.
func (l *Leg) Send(method, path string, h Header, body splice.Body) (*upstream.Response, error) {
	o := l.origin
	l.ownKey = h.ownKey
	o.Trace.Inject(l.Span, h.fields)
	l.Span.Sent(method, path)
	r := upstream.Request{Instance: l.Instance, Method: method, Path: path, Header: h.fields, Body: body.Segments()}
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
			l.Heard()
		}
	}
	return resp, err
}

// Heard notes progress of the engine's core: bytes of an answer that it has computed.
func (l *Leg) Heard() {
	if l.pick != nil {
		l.pick.Heard()
	}
}

// SetLimit replaces the limit: the leg ends with this cause d from now, or d after the
// last Rearm.
func (l *Leg) SetLimit(d time.Duration, cause error) {
	l.mu.Lock()
	l.limitCause = cause
	l.mu.Unlock()
	l.Rearm(d)
}

// Rearm moves the deadline to d from now.
func (l *Leg) Rearm(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.duration = d
	l.timer.Reset(d + time.Duration(l.partner.Load()))
}

// PartnerDone takes the time of Wait.Partner away: the other leg of the pair is done, and
// this one waits for its own instance only.
func (l *Leg) PartnerDone() {
	if l.partner.Swap(0) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() == nil {
		l.timer.Reset(l.duration)
	}
}

// ClearLimit removes the limit: time does not end the leg any more.
func (l *Leg) ClearLimit() { l.timer.Stop() }

func (l *Leg) expire() {
	l.mu.Lock()
	limit := l.limitCause
	l.mu.Unlock()
	l.cancel(limit)
}

// Commit says that the answer is about to be committed: from now on CallOff does not
// end the leg, whatever becomes of its instance. If the leg has ended before, Commit
// gives the cause, and nothing more can be read of the answer.
func (l *Leg) Commit() error {
	l.mu.Lock()
	l.committed = true
	l.mu.Unlock()
	if l.pick != nil {
		l.pick.EndAwait()
	}
	return context.Cause(l)
}

// CallOff implements sched.Leg: it ends the leg unless Commit came first.
func (l *Leg) CallOff(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.committed {
		l.cancel(cause)
	}
}

// handoverSlack is how much of its waiting time a leg may have spent before the
// silence of its instance was noticed.
const handoverSlack = 2 * time.Second

// Silent implements sched.Leg: the instance has given no sign of life for d. Its limit,
// Wait.Silence, holds while the leg waits for its partner, too: an instance that waits
// for KV cache gives signs of life. A hand-over that can be used once must not outlive its lease unread: the engine
// would read blocks that prefill has given to others, without an error
// (TestHandoverEndsWhileTheOnlyDecodeIsSilent). An engine that took the request has extended the lease itself.
func (l *Leg) Silent(d time.Duration) {
	waited := time.Since(l.Began)
	switch {
	case !l.wait.KVUntil.IsZero() && d >= waited-handoverSlack && time.Now().After(l.wait.KVUntil):
		l.CallOff(errHandoverExpired)
	case l.wait.Silence > 0 && min(d, waited) >= l.wait.Silence:
		l.CallOff(ErrFirstByteTimeout)
	}
}

// Connector is the dialect of the leg's instance, "" for a leg of no pick.
func (l *Leg) Connector() string {
	if l.pick == nil {
		return ""
	}
	return l.pick.Connector
}

// End ends the leg, if it has not ended yet, and lets go of what it holds. More
// calls do no harm.
func (l *Leg) End() {
	if l.pick != nil {
		l.pick.EndAwait()
	}
	l.timer.Stop()
	l.cancel(errDone)
	l.Span.End()
}

// Ask sends one request to an instance that was not picked and gives its answer. Only
// the limit and the client end the leg early. The caller ends it.
func (o *Origin) Ask(in *instance.Instance, limit time.Duration, method, path string, h Header, body splice.Body) (*Leg, *upstream.Response, error) {
	l := o.newLeg(Wait{Limit: limit, Cause: ErrFirstByteTimeout})
	l.Instance = in
	resp, err := l.Send(method, path, h, body)
	return l, resp, err
}
