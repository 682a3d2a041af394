package continuation_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/continuation"
)

func limit(n int) func() int { return func() int { return n } }

// The oldest waiting stream continues first, and a stream that has left takes no turn.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p continuation.Pace
		end, err := p.Begin(t.Context(), time.Now(), limit(0))
		require.NoError(t, err)
		assert.True(t, p.TryBegin(limit(1)) == nil, "two turns of one")
		began := time.Now()
		turns := make(chan int, 4)
		wait := func(ctx context.Context, age int) {
			end, err := p.Begin(ctx, began.Add(-time.Duration(age)*time.Second), limit(1))
			if err != nil {
				turns <- -age
				return
			}
			turns <- age
			end()
		}
		leaving, leave := context.WithCancelCause(t.Context())
		go wait(t.Context(), 1)
		go wait(leaving, 5)
		go wait(t.Context(), 3)
		go wait(t.Context(), 2)
		synctest.Wait()
		assert.True(t, p.TryBegin(limit(2)) == nil, "a turn before the streams that wait")
		leave(errors.New("left"))
		synctest.Wait()
		end()
		synctest.Wait()
		var got [4]int
		for i := range got {
			got[i] = <-turns
		}
		assert.Equal(t, [4]int{-5, 3, 2, 1}, got, "turns")
		if end = p.TryBegin(limit(1)); end == nil { // no stream is moving now
			t.Fatal("no turn")
		}
		end()
		end, err = p.Begin(t.Context(), began, limit(1))
		require.NoError(t, err)
		end()
	})
}

// Streams that began to wait while no instance served use all turns as soon as instances serve again.
func TestPace_LimitGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p continuation.Pace
		var limit atomic.Int64
		now := func() int { return int(limit.Load()) }
		began := time.Now()
		ends := make(chan func(), 8)
		wait := func() {
			end, err := p.Begin(t.Context(), began, now)
			if err != nil {
				t.Error(err)
				return
			}
			ends <- end
		}
		for range 4 {
			go wait()
		}
		synctest.Wait()
		require.Equal(t, 1, len(ends), "turns with a limit of 0")
		limit.Store(2)
		(<-ends)()
		synctest.Wait()
		assert.Equal(t, 2, len(ends), "turns with a limit of 2")
		limit.Store(8)
		go wait()
		synctest.Wait()
		assert.Equal(t, 4, len(ends), "turns with a limit of 8")
		limit.Store(1)
		for range 4 {
			(<-ends)()
		}
		if end := p.TryBegin(now); end == nil {
			t.Error("turns were not returned")
		}
	})
}
