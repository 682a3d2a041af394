package retrybudget

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := New(0.2, 4, func() time.Time { return now })
	take := func(n int, inFlight int64) (taken int) {
		for range n {
			if b.Take(inFlight) {
				taken++
			}
		}
		return taken
	}
	require.Equal(t, 4, take(10, 0), "retries without a request")
	for range 100 {
		b.Request(now)
	}
	require.Equal(t, 20, take(100, 0), "more for 100 requests")
	require.Equal(t, 6, take(100, 10), "more when 10 were in flight on the lost instance")
	now = now.Add(9 * time.Second)
	require.Equal(t, 0, take(1, 0), "the past 10 s were forgotten too early")
	now = now.Add(time.Second)
	require.Equal(t, 4, take(100, 0), "after the window")
	now = now.Add(time.Hour)
	require.Equal(t, 4, take(100, 0), "after an hour")
	var none *Budget
	none.Request(now)
	require.True(t, none.Take(0), "no budget means no bound")
}

// If the clock was ahead and is set back, the proxy has retries before that time is reached again.
func TestBudget_ClockSetBack(t *testing.T) {
	t.Parallel()
	right := time.Unix(100000, 0)
	now := right.Add(time.Hour)
	b := New(0.2, 4, func() time.Time { return now })
	b.Request(now)
	for b.Take(0) {
	}
	now = right
	b.Request(now)
	assert.True(t, b.Take(0), "retries of an hour to come count")
	now = now.Add(-time.Second) // a request that is a little late
	for range 4 {
		b.Take(0)
	}
	assert.False(t, b.Take(0), "a second back, and the retries are forgotten")
}
