package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
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
		garbage uint64
		in      time.Duration
		want    uint64
	}{
		{0, time.Second, minHeadroom},
		{1 << 20, time.Minute, minHeadroom},
		{40 << 20, time.Second, 4 << 20},
		{8 << 20, 10 * time.Millisecond, maxHeadroom},
		{1, 0, maxHeadroom},
	} {
		if got := headroomFor(tc.garbage, tc.in); got < tc.want*99/100 || got > tc.want {
			t.Errorf("%d bytes in %v: %d, want %d", tc.garbage, tc.in, got, tc.want)
		}
	}
}

// What was allocated and is still there is no garbage, and the headroom grows
// by steps but shrinks at once.
func TestHeadroomFollowsTheGarbage(t *testing.T) {
	t.Parallel()
	start := time.Now()
	p := &pacer{at: start}
	for i, tc := range []struct {
		name       string
		live, made uint64 // MiB; made since the last one
		in         time.Duration
		want       uint64 // MiB
	}{
		{"the start makes much", 2, 6, 10 * time.Millisecond, 1},
		{"eight prompts come", 10, 8, 10 * time.Millisecond, 1},
		{"they go on with the same memory", 10, 1, 130 * time.Millisecond, 1},
		{"they leave", 2, 0, 130 * time.Millisecond, 2},
		{"many small requests", 2, 10, 10 * time.Millisecond, 4},
		{"still", 2, 10, 10 * time.Millisecond, 8},
		{"still", 3, 20, 10 * time.Millisecond, 8},
		{"a pause", 2, 0, time.Minute, 1},
	} {
		start = start.Add(tc.in)
		if got := p.next(start, tc.live<<20, p.made+tc.made<<20); got != tc.want<<20 {
			t.Errorf("%d, %s: %d bytes, want %d MiB", i, tc.name, got, tc.want)
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
	percent := func() int {
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	check := func(ok bool) error {
		if !ok {
			return fmt.Errorf("%d %%", percent())
		}
		return nil
	}
	for range 2 {
		held := make([]byte, 96<<20)
		testkit.Eventually(t, 10*time.Second, func() error {
			runtime.GC()
			return check(percent() == minPercent)
		})
		runtime.KeepAlive(held)
		testkit.Eventually(t, 10*time.Second, func() error {
			runtime.GC()
			return check(percent() > minPercent)
		})
	}
}
