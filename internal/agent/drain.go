package agent

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// settleLimit is how long the last word before a revoke may take to arrive.
	settleLimit = time.Second
	// goodbyeLimit is how long an engine does not count as drained because etcd has
	// not heard of it. An election takes it a second or two.
	goodbyeLimit = 5 * time.Second
)

// drain ends the registration: "draining" under the same lease, wait until the
// engine is idle, revoke. Before etcd has heard of it the engine may get requests,
// and the end of the lease would be taken for a loss: so that is waited for first.
func (a *Agent) drain(ctx context.Context) error {
	if !a.said.set {
		return nil
	}
	a.said.putState(instance.Draining, "")
	start, limit := time.Now(), a.o.DrainTimeout
	idle := idleWait{engine: a.engine, o: &a.o, load: &a.load, hurry: a.hurry, earliest: start}
	if a.o.ShutdownDelay != nil {
		delay := a.o.ShutdownDelay()
		idle.earliest, limit = start.Add(delay), limit+delay
	}
	a.o.Log.WithField("limit", limit).Info("draining: waiting for the engine to be idle")
	limited, stop := idle.limited(ctx, limit)
	heard := a.said.settle(limited, goodbyeLimit)
	why := idle.wait(limited)
	stop()
	a.o.Log.WithField("after", time.Since(start).Round(time.Millisecond)).Info("drained: " + why)
	if !heard && !a.said.settle(ctx, settleLimit) {
		a.o.Log.Warn("etcd has not heard that the instance leaves: proxies may take its end for a loss, and ask the engine")
	}
	return a.said.revoke(ctx)
}

// withdraw ends the registration of an engine whose process is gone. It says
// "down" first: a lease that ends without a word is taken for a loss, and the
// proxies would keep the instance as an orphan.
func (a *Agent) withdraw(ctx context.Context) error {
	if !a.said.set {
		return nil
	}
	a.said.putState(instance.Down, "")
	a.said.settle(ctx, settleLimit)
	if err := a.said.revoke(ctx); err != nil {
		return err
	}
	a.o.Log.Info("registration taken back: the engine's process has ended")
	return nil
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

// closed reports whether a channel on which nothing is sent is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
