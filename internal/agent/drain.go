package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// settleLimit is the limit of the second wait for etcd to store "draining", after the drain.
	settleLimit = time.Second
	// storeTimeout is how long etcd may take to store "draining" or "down". An election takes
	// a second or two.
	storeTimeout = 5 * time.Second
)

// leave ends the registration, if there is one.
func (a *Agent) leave(ctx context.Context) error {
	if !a.hasRecord() {
		return nil
	}
	if closed(a.o.Exited) {
		// Without "down", proxies treat the end of the lease as a loss and keep the instance as
		// an orphan.
		a.putState(instance.Down, "")
		a.settle(ctx, storeTimeout)
	} else {
		a.drain(ctx)
	}
	if err := a.registrar.Revoke(ctx); err != nil {
		return fmt.Errorf("revoke %s (its key is deleted when the lease expires): %w", a.o.Key, err)
	}
	return nil
}

// drain writes "draining" under the same lease, and waits until the engine is idle. It first waits
// until etcd has stored "draining": until then proxies send requests, and would treat the end of
// the lease as a loss.
func (a *Agent) drain(ctx context.Context) {
	a.putState(instance.Draining, "")
	start, limit := time.Now(), a.o.DrainTimeout
	idle := idleWait{Agent: a, earliest: start}
	if a.o.ShutdownDelay != nil {
		delay := a.o.ShutdownDelay()
		idle.earliest, limit = start.Add(delay), limit+delay
	}
	a.o.Log.WithField("limit", limit).Info("draining: waiting for the engine to be idle")
	limited, cancel := context.WithTimeout(ctx, limit)
	stop := cancelOnClose(limited, cancel, a.hurry, a.o.Exited) // also cancels a hung read of the load
	stored := a.settle(limited, storeTimeout)
	why := idle.wait(limited)
	stop()
	a.o.Log.WithField("after", time.Since(start).Round(time.Millisecond)).Info("drained: " + why)
	if !stored && !a.settle(ctx, settleLimit) {
		a.o.Log.Warn("etcd did not store the drain: proxies may treat the end of the lease as a loss and probe the engine")
	}
}

// cancelOnClose calls cancel, which must end ctx, when either channel is closed. stop calls it, too.
func cancelOnClose(ctx context.Context, cancel func(), one, other <-chan struct{}) (stop func()) {
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
