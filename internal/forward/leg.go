package forward

import (
	"context"
	"time"
)

// leg is the lifetime of one request to an engine: it ends with the client,
// by a deadline of ours, or when the caller is through with it. Ending it
// closes the connection of an unfinished answer, which is what makes vLLM
// abort the work.
type leg struct {
	ctx    context.Context //nolint:containedctx // the leg is this context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// newLeg starts a leg that ends after d with the given cause.
func newLeg(parent context.Context, d time.Duration, cause error) *leg {
	l := &leg{}
	l.ctx, l.cancel = context.WithCancelCause(parent)
	l.timer = time.AfterFunc(d, func() { l.cancel(cause) })
	return l
}

// next replaces the deadline: from now on the leg ends d after the last rearm.
func (l *leg) next(d time.Duration, cause error) {
	l.timer.Stop()
	l.timer = time.AfterFunc(d, func() { l.cancel(cause) })
}

func (l *leg) rearm(d time.Duration) { l.timer.Reset(d) }

func (l *leg) end() {
	l.timer.Stop()
	l.cancel(errLegDone)
}
