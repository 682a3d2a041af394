package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/vllm"
)

// errStarved ends a probe that had no fair chance: this process did not run.
var errStarved = errors.New("this agent gets too little processor time to judge its engine")

const (
	// fairTicks is into how many pieces the limit of a probe is cut.
	fairTicks = 20
	// starvedAfter is how many times its limit a probe may take in all.
	starvedAfter = 10
)

// newTicks is a time.Ticker as allow takes it.
func newTicks(every time.Duration) (ticks <-chan time.Time, stop func()) {
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// allow returns a context that ends when this process has run for limit. On a machine
// whose processors are all taken an answer waits in the kernel until the agent gets
// its turn, and a plain deadline would often be found to have passed first. So ticks,
// which come each fairTicks-th part of the limit, are counted: those that nobody was
// there to take are lost, and do not count. tick is called for each.
//
// stop ends it and waits.
func allow(ctx context.Context, limit time.Duration, ticks <-chan time.Time, tick func()) (fair context.Context, stop func()) {
	// However it goes the question ends.
	ctx, release := context.WithTimeoutCause(ctx, starvedAfter*limit, errStarved)
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range fairTicks {
			select {
			case <-ctx.Done():
				return
			case <-ticks:
				tick()
			}
		}
		cancel(fmt.Errorf("%w within %s: is the engine busy, hung or unreachable?", vllm.ErrTimeout, limit))
	}()
	return ctx, func() { cancel(nil); release(); <-done }
}
