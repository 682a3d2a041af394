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
	for live, want := range map[uint64]int{
		0: 400, 1 << 20: 400, 2 << 20: 400, 4 << 20: 200, 8 << 20: 100, 16 << 20: 50, 32 << 20: 25, 1 << 40: 25,
	} {
		if got := percentFor(live); got != want {
			t.Errorf("%d live bytes: %d %%, want %d", live, got, want)
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
