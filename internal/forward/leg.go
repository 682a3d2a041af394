package forward

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// leg is the lifetime of one request to an engine: it ends with the client,
// by a deadline of ours, when its instance is known to be gone, or when the
// caller is through with it. Ending it closes the connection of an unfinished
// answer, which is what makes vLLM abort the work.
type leg struct {
	ctx    context.Context //nolint:containedctx // the leg is this context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	pick   *sched.Assignment // nil for a leg that nobody can call off
}

// begin starts a leg on a picked instance that ends after d with the given
// cause, or as soon as its instance is found gone, with sched.ErrGone.
func (x *exchange) begin(a *sched.Assignment, d time.Duration, cause error) *leg {
	l := x.beginAt(d, cause)
	l.pick = a
	a.Await(l.cancel)
	// The membership may have changed between the pick and Await.
	if err := x.h.opts.Picker.Gone(a.Instance); err != nil {
		l.cancel(err)
	}
	return l
}

// beginAt starts a leg that nothing but its deadline and the client ends.
func (x *exchange) beginAt(d time.Duration, cause error) *leg {
	l := &leg{}
	l.ctx, l.cancel = context.WithCancelCause(x.ctx)
	l.timer = time.AfterFunc(d, func() { l.cancel(cause) })
	return l
}

// next replaces the deadline: from now on the leg ends d after the last rearm.
func (l *leg) next(d time.Duration, cause error) {
	l.timer.Stop()
	l.timer = time.AfterFunc(d, func() { l.cancel(cause) })
}

func (l *leg) rearm(d time.Duration) { l.timer.Reset(d) }

// settle tells that the answer is committed: the leg is carried to its end
// whatever is heard of its instance.
func (l *leg) settle() {
	if l.pick != nil {
		l.pick.Settle()
	}
}

func (l *leg) end() {
	l.settle()
	l.timer.Stop()
	l.cancel(errLegDone)
}

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
