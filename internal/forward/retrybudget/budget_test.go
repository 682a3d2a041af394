package retrybudget

import (
	"testing"
	"time"
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
	if n := take(10, 0); n != 4 {
		t.Fatalf("%d retries without a request, want the burst of 4", n)
	}
	for range 100 {
		b.Request(now)
	}
	if n := take(100, 0); n != 20 {
		t.Fatalf("%d more for 100 requests, want 20", n)
	}
	if n := take(100, 10); n != 6 {
		t.Fatalf("%d more when 10 were in flight on the lost instance, want 6", n)
	}
	now = now.Add(9 * time.Second)
	if n := take(1, 0); n != 0 {
		t.Fatal("the past 10 s were forgotten too early")
	}
	now = now.Add(time.Second)
	if n := take(100, 0); n != 4 {
		t.Fatalf("%d after the window, want the burst of 4", n)
	}
	now = now.Add(time.Hour)
	if n := take(100, 0); n != 4 {
		t.Fatalf("%d after an hour, want the burst of 4", n)
	}
	var none *Budget
	none.Request(now)
	if !none.Take(0) {
		t.Fatal("no budget means no bound")
	}
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
	if !b.Take(0) {
		t.Error("retries of an hour to come count")
	}
	now = now.Add(-time.Second) // a request that is a little late
	for range 4 {
		b.Take(0)
	}
	if b.Take(0) {
		t.Error("a second back, and the retries are forgotten")
	}
}
