package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
)

// errStarved ends a probe during which this process got too little CPU.
var errStarved = errors.New("the agent gets too little CPU time to probe the engine")

const (
	// fairTicks is the number of ticks in the limit of a probe.
	fairTicks = 20
	// starvedAfter is the longest duration of a probe, in multiples of its limit.
	starvedAfter = 10
)

// newTicks returns a time.Ticker for allow.
func newTicks(every time.Duration) (ticks <-chan time.Time, stop func()) {
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// allow returns a context that ends when this process has run for limit. On an overloaded
// machine an answer waits in the kernel until the agent is scheduled, and a plain deadline
// would often pass first. So allow divides limit into fairTicks ticks and counts them: a ticker
// drops ticks while the process does not run. tick is called for each tick.
//
// stop ends the context and waits for the goroutine that counts.
func allow(ctx context.Context, limit time.Duration, ticks <-chan time.Time, tick func()) (fair context.Context, stop func()) {
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
