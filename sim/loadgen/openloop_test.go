package loadgen_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/assert"
)

func every(d time.Duration) func(int) time.Duration {
	return func(i int) time.Duration { return time.Duration(i) * d }
}

func TestOpenLoopKeepsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		sent := make([]time.Duration, 5)
		lag := loadgen.OpenLoop(t.Context(), loadgen.Schedule{
			Requests: 5, At: every(time.Second),
			Send: func(_ context.Context, i int) {
				sent[i] = time.Since(start)
				time.Sleep(10 * time.Second) // a slow answer must not hold up the next request
			},
		})
		for i, at := range sent {
			assert.Equal(t, at, time.Duration(i)*time.Second, "request %d was sent at", i)
		}
		assert.Equal(t, lag, (loadgen.Lag{}), "lag")
		assert.Equal(t, time.Since(start), 14*time.Second, "it ended after")
	})
}

func TestOpenLoop_BoundAndLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		lag := loadgen.OpenLoop(t.Context(), loadgen.Schedule{
			Requests: 6, At: every(0), MaxInFlight: 2,
			Send: func(context.Context, int) {
				n := now.Add(1)
				defer now.Add(-1)
				if n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Second)
			},
		})
		assert.Equal(t, most.Load(), 2, "requests at once")
		assert.True(t, lag.Max == 2*time.Second && lag.Late == 4, "lag %+v, want 2s and 4 late", lag)
	})
}

func TestOpenLoopStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var sent atomic.Int64
		loadgen.OpenLoop(ctx, loadgen.Schedule{
			Requests: 100, At: every(time.Second), MaxInFlight: 1,
			Send: func(context.Context, int) {
				if sent.Add(1) == 3 {
					cancel()
				}
			},
		})
		assert.Equal(t, sent.Load(), 3, "requests were sent")
	})
}
