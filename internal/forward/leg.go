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
	unwatch          func() bool       // takes the leg off the client's context; nil if its exchange watches that
	timer            *time.Timer

	mu    sync.Mutex // guards limit
	limit error      // what the timer ends the leg with
}

var _ context.Context = (*leg)(nil)

// begin starts a leg on a picked instance that ends after d with the given
// cause, or as soon as its instance is found gone, with sched.ErrGone. An
// exchange has one such leg at a time.
func (x *exchange) begin(a *sched.Assignment, d time.Duration, cause error) *leg {
	l := &leg{client: x.ctx, pick: a}
	l.next(d, cause)
	x.running.Store(l)
	if x.unwatch == nil {
		x.unwatch = lifetime.AfterFunc(x.ctx, x.clientLeft)
	}
	if x.ctx.Err() != nil { // before it was stored
		l.Cancel(context.Cause(x.ctx))
	}
	a.Await(l)
	// The membership may have changed between the pick and Await.
	if err := x.h.opts.Picker.Gone(a.Instance); err != nil {
		l.Cancel(err)
	}
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
	l := &leg{client: x.ctx}
	l.next(d, cause)
	l.unwatch = lifetime.AfterFunc(x.ctx, func() { l.Cancel(context.Cause(x.ctx)) })
	return l
}

// do sends a request to an engine, and notes whether the upstream client is
// through with its body when that returns.
func (x *exchange) do(l *leg, r *upstream.Request) (*upstream.Response, error) {
	if c, ok := x.h.opts.Upstream.(interface {
		ReleasesBody(r *upstream.Request) bool
	}); r.Body != nil && (!ok || !c.ReleasesBody(r)) {
		x.lent = true
	}
	return x.h.opts.Upstream.Do(l, r)
}

// next sets or replaces the deadline: from now on the leg ends d after the
// last rearm.
func (l *leg) next(d time.Duration, cause error) {
	l.mu.Lock()
	l.limit = cause
	l.mu.Unlock()
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.expire)
		return
	}
	l.timer.Reset(d)
}

func (l *leg) expire() {
	l.mu.Lock()
	limit := l.limit
	l.mu.Unlock()
	l.Cancel(limit)
}

func (l *leg) rearm(d time.Duration) { l.timer.Reset(d) }

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

func (l *leg) end() {
	_ = l.settle() // it is over in any case
	l.timer.Stop()
	if l.unwatch != nil {
		l.unwatch()
	}
	l.Cancel(errLegDone)
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
}
