package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/testkit"
)

func TestPercentFor(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		live, headroom uint64
		want           int
	}{
		{0, 8 << 20, 400},
		{1 << 20, 8 << 20, 400},
		{2 << 20, 8 << 20, 400},
		{4 << 20, 8 << 20, 200},
		{16 << 20, 8 << 20, 50},
		{32 << 20, 8 << 20, 25},
		{1 << 40, 8 << 20, 25},
		{1 << 20, 1 << 20, 100},
		{10 << 20, 1 << 20, 10},
		{16 << 20, 1 << 20, 12},
		{1 << 40, 1 << 20, 25},
	} {
		if got := percentFor(tc.live, tc.headroom); got != tc.want {
			t.Errorf("%d live bytes, headroom %d: %d %%, want %d", tc.live, tc.headroom, got, tc.want)
		}
	}
}

func TestHeadroomFor(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		made uint64
		in   time.Duration
		want uint64
	}{
		{0, time.Second, minHeadroom},
		{1 << 20, time.Minute, minHeadroom},
		{40 << 20, time.Second, 4 << 20},
		{8 << 20, 10 * time.Millisecond, maxHeadroom},
		{1, 0, maxHeadroom},
	} {
		if got := headroomFor(tc.made, tc.in); got < tc.want*99/100 || got > tc.want {
			t.Errorf("%d bytes in %v: %d, want %d", tc.made, tc.in, got, tc.want)
		}
	}
}

// The percentage must follow the heap, up and down, for as long as the program
// runs. It is the process', so this test has no others beside it.
func TestPacerFollowsTheHeap(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	p := newPacer()
	debug.SetGCPercent(p.percent)
	p.arm()
	percent := func() int { // looked at, not set and set back: the pacer may set it in between
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	check := func(ok bool) error {
		if !ok {
			return fmt.Errorf("%d %%", percent())
		}
		return nil
	}
	for range 2 {
		held := make([]byte, 96<<20)
		testkit.Eventually(t, time.Minute, func() error {
			runtime.GC()
			return check(percent() == minPercent)
		})
		runtime.KeepAlive(held)
		testkit.Eventually(t, time.Minute, func() error {
			// Little garbage and the 4 MiB that other tests may have left would make
			// the same percentage as a large heap.
			runtime.KeepAlive(make([]byte, 16<<20))
			runtime.GC()
			return check(percent() > minPercent)
		})
	}
}
