package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// loadWatch remembers when the engine last had something to do. Times are this
// machine's monotonic clock.
type loadWatch struct {
	known    bool
	finished float64
	lastBusy time.Time // zero: never seen busy
}

// see takes one reading. A request that started and ended between two readings
// shows in the counter of finished ones; those finished before the first
// reading may have ended just now.
func (l *loadWatch) see(s vllm.Stats, now time.Time) {
	if s.Running > 0 || s.Waiting > 0 || s.Finished != l.finished {
		l.lastBusy = now
	}
	l.known, l.finished = s.Complete, s.Finished
}

// drain ends the registration: "draining" under the same lease, wait until the
// engine is idle, revoke. Before etcd has heard of it the engine may get requests,
// and the end of the lease would be taken for a loss: so that is waited for first.
func (a *Agent) drain(ctx context.Context) error {
	if !a.set {
		return nil
	}
	rec := clone(a.rec)
	rec.State, rec.Cause = instance.Draining, ""
	a.put(rec)
	start := time.Now()
	a.o.Log.WithField("limit", a.o.DrainTimeout).Info("draining: waiting for the engine to be idle")
	dctx, stop := a.drainContext(ctx)
	heard := a.settle(dctx, goodbyeLimit)
	why := a.awaitIdle(dctx)
	stop()
	a.o.Log.WithField("after", time.Since(start).Round(time.Millisecond)).Info("drained: " + why)
	if !heard && !a.settle(ctx, settleLimit) {
		a.o.Log.Warn("etcd has not heard that the instance leaves: proxies may take its end for a loss, and ask the engine")
	}
	if err := a.registrar.Revoke(ctx); err != nil {
		return fmt.Errorf("revoke %s (its key goes when the lease ends): %w", a.o.Key, err)
	}
	return nil
}

// withdraw ends the registration of an engine whose process is gone. It says
// "down" first: a lease that ends without a word is taken for a loss, and the
// proxies would keep the instance as an orphan.
func (a *Agent) withdraw(ctx context.Context) error {
	if !a.set {
		return nil
	}
	rec := clone(a.rec)
	rec.State, rec.Cause = instance.Down, ""
	a.put(rec)
	a.settle(ctx, settleLimit)
	if err := a.registrar.Revoke(ctx); err != nil {
		return fmt.Errorf("revoke %s (its key goes when the lease ends): %w", a.o.Key, err)
	}
	a.o.Log.Info("registration taken back: the engine's process has ended")
	return nil
}

// settle waits for the last word to arrive, and tells whether it has.
func (a *Agent) settle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.registrar.Settle(ctx)
}

// drainContext ends when the limit of a drain has passed, the agent is told not to
// wait, or the engine's process is gone.
func (a *Agent) drainContext(ctx context.Context) (dctx context.Context, stop func()) {
	dctx, cancel := context.WithTimeout(ctx, a.o.DrainTimeout)
	return dctx, endsWith(dctx, cancel, a.hurry, a.o.Exited) // a hurry also ends a reading that hangs
}

// endsWith ends ctx, which cancel is of, when either channel is closed. stop ends it, too.
func endsWith(ctx context.Context, cancel func(), one, other <-chan struct{}) (stop func()) {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-one:
		case <-other:
		case <-ctx.Done():
		}
		cancel()
	}()
	return func() { cancel(); <-watching }
}

// awaitIdle returns in words what ended the wait.
func (a *Agent) awaitIdle(ctx context.Context) string {
	poll := time.NewTicker(min(drainPoll, a.o.DrainTimeout))
	defer poll.Stop()
	idle, refused := 0, 0
	shown := ""
	for {
		lctx, cancel := context.WithTimeout(ctx, a.o.ProbeTimeout)
		stats, err := a.engine.Load(lctx)
		cancel()
		if ctx.Err() == nil {
			now := time.Now()
			busy := ""
			switch {
			case errors.Is(err, vllm.ErrRefused):
				if refused++; refused >= downAfter {
					return "the engine is gone"
				}
				busy = "the engine refuses connections"
			case err != nil:
				refused, idle = 0, 0
				busy = "the engine does not show its load: " + err.Error()
			default:
				refused = 0
				a.load.see(stats, now)
				busy = a.busy(stats, now)
			}
			if busy == "" {
				if idle++; idle >= idleAfter {
					return "the engine is idle"
				}
			} else {
				idle = 0
				if busy != shown {
					a.o.Log.Info("still draining: " + busy)
					shown = busy
				}
			}
		}
		select {
		case <-ctx.Done():
			select {
			case <-a.hurry:
				return "told not to wait"
			default:
			}
			if a.exited() {
				return "the engine's process has ended"
			}
			return "the limit has passed"
		case <-poll.C:
		}
	}
}

// busy says what the engine still has to do, "" for nothing.
func (a *Agent) busy(s vllm.Stats, now time.Time) string {
	switch {
	case !s.Complete:
		return "the engine's /metrics do not tell what runs"
	case !s.Idle():
		return fmt.Sprintf("%g running, %g waiting", s.Running, s.Waiting)
	case a.o.Key.Role != instance.Decode && a.o.KVLease > 0 &&
		!a.load.lastBusy.IsZero() && now.Sub(a.load.lastBusy) < a.o.KVLease:
		return "finished prefills may still be pulled by decode"
	}
	return ""
}
