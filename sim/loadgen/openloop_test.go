package loadgen_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/loadgen"
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
			assert.Equal(t, time.Duration(i)*time.Second, at, "request %d was sent at", i)
		}
		assert.Equal(t, (loadgen.Lag{}), lag, "lag")
		assert.Equal(t, 14*time.Second, time.Since(start), "it ended after")
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
		assert.EqualValues(t, 2, most.Load(), "requests at once")
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
		assert.EqualValues(t, 3, sent.Load(), "requests were sent")
	})
}
