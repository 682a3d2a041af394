package histogram_test

import (
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/histogram"
)

const ms = time.Millisecond

func bounds() histogram.Bounds { return histogram.Bounds{ms, 10 * ms, 100 * ms} }

func TestBucketsAreClosedAbove(t *testing.T) {
	t.Parallel()
	h := histogram.New(bounds())
	for _, d := range []time.Duration{0, ms, ms + 1, 10 * ms, 100 * ms, 100*ms + 1, time.Hour} {
		h.Observe(d)
	}
	var c histogram.Counts
	h.Read(&c)
	if want := [4]uint64{2, 2, 1, 2}; [4]uint64(c.N[:4]) != want {
		t.Errorf("%v, want %v", c.N[:4], want)
	}
	if want := time.Hour + 212*ms + 2; c.Sum != want || c.Total() != 7 {
		t.Errorf("sum %v of %d, want %v of 7", c.Sum, c.Total(), want)
	}
}

// What streams count for themselves arrives whole, however often they add it.
func TestLocalAddsAll(t *testing.T) {
	t.Parallel()
	h := histogram.New(bounds())
	var streams sync.WaitGroup
	for range 8 {
		streams.Go(func() {
			var l histogram.Local
			if l.On() {
				t.Error("on without a histogram")
			}
			l.For(h)
			for range 1000 {
				l.Observe(5*ms, 2)
			}
			l.Flush()
			l.Flush()
		})
	}
	streams.Wait()
	var c histogram.Counts
	h.Read(&c)
	if c.N[0] != 16000 || c.N[1] != 8000 || c.Total() != 24000 || c.Sum != 40*time.Second {
		t.Errorf("%v, sum %v", c.N, c.Sum)
	}
}

// A stream of hours is seen before it ends.
func TestLocalAddsOnTheWay(t *testing.T) {
	t.Parallel()
	h := histogram.New(bounds())
	var l histogram.Local
	l.For(h)
	for range 1000 {
		l.Observe(ms, 0)
	}
	var c histogram.Counts
	h.Read(&c)
	if n := c.Total(); n < 700 || n > 1000 {
		t.Errorf("%d of 1000 are seen", n)
	}
}

// What a token costs.
func BenchmarkLocal(b *testing.B) {
	var l histogram.Local
	l.For(histogram.New(histogram.Bounds{ms, 2 * ms, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 75 * ms, 100 * ms}))
	b.ReportAllocs()
	for b.Loop() {
		l.Observe(20*ms, 0)
	}
}
