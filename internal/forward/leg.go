package forward

import (
	"context"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/lifetime"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// leg is the lifetime of one request to an engine, as a context: it ends with
// the client, by a deadline of ours, when its instance is known to be gone, or
// when the caller is through with it. Ending it closes the connection of an
// unfinished answer, which is what makes vLLM abort the work.
//
// Its Err is the cause itself, so context.Cause gives it too.
type leg struct {
	lifetime.Context                   // CallOff implements sched.Leg
	client           context.Context   //nolint:containedctx // whose values these are
	pick             *sched.Assignment // nil for a leg that nobody can call off
	watch            lifetime.Watch    // of the client's context, unless its exchange watches that
	deadline         *deadline
	request          upstream.Request // as long as it is being sent
	space            *upstream.Space  // for its answer, nil if that is to be made
	sent             time.Time        // when it began
	wait             wait
	over             bool // end was called, and the deadline can end nothing any more
	alone            bool // the same, and nobody else can or will ask about it
}

// deadline ends a leg in time. The next leg of an exchange takes it over,
// unless it went off.
type deadline struct {
	timer *time.Timer
	late  bool // it had gone off when it was moved: its function may be running

	mu    sync.Mutex // guards what follows
	leg   *leg
	limit error // what it ends the leg with
}

func (d *deadline) expire() {
	d.mu.Lock()
	l, limit := d.leg, d.limit
	d.mu.Unlock()
	l.Cancel(limit)
}

// move sets it to d from now.
func (d *deadline) move(after time.Duration) {
	if !d.timer.Reset(after) {
		d.late = true
	}
}

var _ context.Context = (*leg)(nil)

// wait is how long a leg may wait for the beginning of its answer.
type wait struct {
	limit time.Duration
	cause error // what it ends with then
	// silence is the limit while the instance gives no sign of life; 0 for none.
	silence time.Duration
	// kvUntil is when the lease of its hand-over ends, zero if there is none, or
	// if it can be read more than once.
	kvUntil time.Time
}

// begin starts a leg on a picked instance that ends when its wait is over, or as
// soon as its instance is found gone, with sched.ErrGone. An exchange has one such
// leg at a time.
func (x *exchange) begin(a *sched.Assignment, w wait) *leg {
	l := x.newLeg()
	l.client, l.pick, l.sent, l.wait = x.ctx, a, x.now, w
	switch before := x.running.Load(); {
	case before == nil:
		l.deadline = &x.deadline
	case before.over:
		l.deadline, before.deadline = before.deadline, nil
	}
	l.next(w.limit, w.cause)
	x.running.Store(l)
	if !x.watched {
		x.watched = true
		if x.onLeft == nil {
			x.onLeft = x.clientLeft
		}
		x.watch = lifetime.AfterFunc(x.ctx, x.onLeft)
	}
	if x.ctx.Err() != nil { // before it was stored
		l.Cancel(context.Cause(x.ctx))
	}
	a.Await(l, x.now)
	// The membership may have changed between the pick and Await.
	if err := x.h.opts.Picker.Gone(a); err != nil {
		l.Cancel(err)
	}
	return l
}

// newLeg makes room for a leg: most requests have two, which lie in the exchange.
func (x *exchange) newLeg() *leg {
	if x.legs == len(x.room) {
		x.apart = true
		return new(leg)
	}
	if x.spaces == nil {
		x.spaces = new([2]upstream.Space)
	}
	l := &x.room[x.legs]
	l.space = &x.spaces[x.legs]
	x.legs++
	return l
}

// clientLeft ends the running leg.
func (x *exchange) clientLeft() {
	if l := x.running.Load(); l != nil {
		l.Cancel(context.Cause(x.ctx))
	}
}

// beginAside starts a leg beside others that nothing but its deadline and the
// client ends.
func (x *exchange) beginAside(d time.Duration, cause error) *leg {
	x.apart = true
	l := &leg{client: x.ctx}
	l.next(d, cause)
	l.watch = lifetime.AfterFunc(x.ctx, func() { l.Cancel(context.Cause(x.ctx)) })
	return l
}

// do sends the leg's request to an engine, and notes whether the upstream
// client is through with its body when that returns.
func (x *exchange) do(l *leg) (*upstream.Response, error) {
	r := &l.request
	if c := x.h.releases; r.Body != nil && (c == nil || !c.ReleasesBody(r)) {
		x.lent = true
	}
	defer func() { l.request = upstream.Request{} }() // an open stream must not hold the prompt
	r.Space = l.space
	return x.h.opts.Upstream.Do(l, r)
}

// next sets or replaces the deadline: from now on the leg ends d after the
// last rearm.
func (l *leg) next(d time.Duration, cause error) {
	t := l.deadline
	if t == nil {
		t = new(deadline)
		l.deadline = t
	}
	t.mu.Lock()
	stopped := t.leg != l
	t.leg, t.limit = l, cause
	t.mu.Unlock()
	switch {
	case t.timer == nil:
		t.timer = time.AfterFunc(d, t.expire)
	case stopped: // with the leg before
		t.timer.Reset(d)
	default:
		t.move(d)
	}
}

func (l *leg) rearm(d time.Duration) { l.deadline.move(d) }

// settle tells that the answer is about to be committed: from now on the leg is
// carried to its end whatever is heard of its instance. It gives the cause if the
// leg has ended before, so that nothing more can come than was read.
func (l *leg) settle() error {
	cause := l.Settle()
	if l.pick != nil {
		l.pick.Settle()
	}
	return cause
}

// handoverSlack is how much of its waiting time a leg may have spent before the
// silence of its instance was noticed.
const handoverSlack = 2 * time.Second

// Silent implements sched.Leg: the instance has given no sign of life for so long.
// A hand-over that can be used once must not outlive its lease unread: the engine
// would read blocks that prefill has given to others, without an error (protocol
// rule 2.5). An engine that took the request has extended the lease itself.
func (l *leg) Silent(d time.Duration) {
	waited := time.Since(l.sent)
	switch {
	case !l.wait.kvUntil.IsZero() && d >= waited-handoverSlack && time.Now().After(l.wait.kvUntil):
		l.CallOff(errHandoverExpired)
	case l.wait.silence > 0 && min(d, waited) >= l.wait.silence:
		l.CallOff(errFirstByteTimeout)
	}
}

func (l *leg) end() {
	alone := l.pick == nil || l.pick.Settle()
	l.over = l.deadline.timer.Stop() && !l.deadline.late
	unwatched := l.watch.Stop()
	l.alone = !l.Finish(errLegDone) && unwatched && alone && l.over
}

// Value implements context.Context.
func (l *leg) Value(key any) any { return l.client.Value(key) }

// Health hears what requests learn about instances.
type Health interface {
	// Eject: nobody can connect to it.
	Eject(in *instance.Instance, reason string)
	// Strike: it failed a request that another instance then served.
	Strike(in *instance.Instance, reason string)
	// Success: it served. Called for every leg, so it must cost nothing while
	// nobody is in trouble.
	Success(in *instance.Instance)
	// Available tells whether it is in.
	Available(k instance.Key) bool
}
