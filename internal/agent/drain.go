package agent

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// settleLimit is how long the end of a drain waits again for etcd to store "draining".
	settleLimit = time.Second
	// goodbyeLimit is how long etcd may take to store "draining" or "down". An election takes
	// a second or two.
	goodbyeLimit = 5 * time.Second
)

// drain ends the registration: it puts "draining" under the same lease, waits until the
// engine is idle, and revokes. It waits first until etcd has stored "draining", because until
// then proxies send requests, and would treat the end of the lease as a loss.
func (a *Agent) drain(ctx context.Context) error {
	if !a.said.set {
		return nil
	}
	a.said.putState(instance.Draining, "")
	start, limit := time.Now(), a.o.DrainTimeout
	idle := idleWait{Agent: a, earliest: start}
	if a.o.ShutdownDelay != nil {
		delay := a.o.ShutdownDelay()
		idle.earliest, limit = start.Add(delay), limit+delay
	}
	a.o.Log.WithField("limit", limit).Info("draining: waiting for the engine to be idle")
	limited, cancel := context.WithTimeout(ctx, limit)
	stop := endsWith(limited, cancel, a.hurry, a.o.Exited) // also ends a hung reading
	stored := a.said.settle(limited, goodbyeLimit)
	why := idle.wait(limited)
	stop()
	a.o.Log.WithField("after", time.Since(start).Round(time.Millisecond)).Info("drained: " + why)
	if !stored && !a.said.settle(ctx, settleLimit) {
		a.o.Log.Warn("etcd did not store the drain: proxies may treat the end of the lease as a loss and probe the engine")
	}
	return a.said.revoke(ctx)
}

// withdraw ends the registration of an engine whose process has exited. It puts "down" first,
// because proxies treat the end of a lease without it as a loss and keep the instance as an
// orphan.
func (a *Agent) withdraw(ctx context.Context) error {
	if !a.said.set {
		return nil
	}
	a.said.putState(instance.Down, "")
	a.said.settle(ctx, goodbyeLimit)
	return a.said.revoke(ctx)
}

// endsWith calls cancel, which ends ctx, when either channel is closed. stop calls it, too.
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

// closed reports whether a channel without values is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
