package main

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/config"
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
	const mib = 1 << 20
	for _, tc := range []struct {
		garbage uint64
		in      time.Duration
		scan    uint64
		want    uint64
	}{
		{0, time.Second, 0, minHeadroom},
		{mib, time.Minute, mib, minHeadroom},
		{10 * mib, time.Second, mib, 4 * mib},
		{8 * mib, 10 * time.Millisecond, 2 * mib, maxHeadroom},
		{1, 0, mib, maxHeadroom},
		// A dearer collection is put off, but not for ever.
		{10 * mib, time.Second, 3 * mib, 6 * mib},
		{10 * mib, time.Second, 4 * mib, 12 * mib},
		{100 * mib, time.Second, 4 * mib, 24 * mib},
		{100 * mib, time.Second, 8 * mib, 48 * mib},
		{100 * mib, time.Second, 1000 * mib, 48 * mib},
		{0, time.Second, 1000 * mib, minHeadroom},
	} {
		if got := headroomFor(tc.garbage, tc.in, tc.scan); got < tc.want*99/100 || got > tc.want {
			t.Errorf("%d bytes in %v, %d to look through: %d, want %d", tc.garbage, tc.in, tc.scan, got, tc.want)
		}
	}
}

// What comes in a moment is no rate.
func TestHeadroomFollowsTheGarbage(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	start, freed := time.Now(), uint64(0)
	p := &pacer{since: start}
	for i, tc := range []struct {
		name  string
		freed uint64 // MiB, since the last one
		in    time.Duration
		want  uint64 // MiB
	}{
		{"the start makes much", 2, 40 * ms, 2},
		{"a pause", 0, 4 * time.Second, 1},
		{"prompts come", 0, 20 * ms, 1},
		{"and more", 0, 20 * ms, 1},
		{"they go on with the same memory", 1, 760 * ms, 1},
		{"they leave", 8, 800 * ms, 4},
		{"many small requests, which may be no more than before", 1, 40 * ms, 4},
		{"still", 1, 40 * ms, 4},
		{"still", 4, 160 * ms, 6},
		{"still", 8, 160 * ms, 8},
		{"still", 8, 320 * ms, 8},
		{"a pause", 2, time.Minute, 1},
	} {
		start, freed = start.Add(tc.in), freed+tc.freed<<20
		if got := p.headroom(start, freed, 0); got < tc.want<<20*99/100 || got > tc.want<<20 {
			t.Errorf("%d, %s: %d bytes, want %d MiB", i, tc.name, got, tc.want)
		}
	}
}

// The percentage that was set while the heap was small must not stay when
// no collection tells that it has grown.
func TestPacerLooksAgain(t *testing.T) {
	before := debug.SetGCPercent(-1) // none but those asked for
	t.Cleanup(func() { debug.SetGCPercent(before) })
	p := newPacer()
	held := make([]byte, 96<<20)
	runtime.GC()
	p.lookAgain() // as a clean-up does that came too late to see that collection
	testkit.Eventually(t, 10*time.Second, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.percent != minPercent {
			return fmt.Errorf("%d %%", p.percent)
		}
		return nil
	})
	runtime.KeepAlive(held)
}

// When collections stay away, the headroom of busier times goes, too.
func TestPacerLooksOnceMoreWhenNoCollectionComes(t *testing.T) {
	before := debug.SetGCPercent(-1) // none but those asked for
	t.Cleanup(func() { debug.SetGCPercent(before) })
	p := newPacer()
	runtime.GC()
	p.mu.Lock()
	// Much garbage until a moment ago.
	p.since, p.room = time.Now(), maxHeadroom
	metrics.Read(p.heap)
	p.freed = p.heap[1].Value.Uint64()
	p.percent = percentFor(p.heap[0].Value.Uint64(), maxHeadroom)
	want := percentFor(p.heap[0].Value.Uint64(), minHeadroom)
	p.mu.Unlock()
	p.lookAgain()
	testkit.Eventually(t, 10*time.Second, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if got := p.percent; got > want+want/5+1 {
			return fmt.Errorf("%d %%, want %d", got, want)
		}
		return nil
	})
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

// The memory limit is the process', so this test has no others beside it.
func TestBodiesMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	var byLimit, given config.Proxy
	given.MaxBodiesMemory = 5 << 20
	for _, tc := range []struct {
		limit int64
		cfg   *config.Proxy
		want  int64
	}{
		{1 << 30, &byLimit, 512 << 20},
		{20 << 20, &byLimit, leastBodies},
		{1 << 30, &given, 5 << 20},
		{math.MaxInt64, &given, 5 << 20},
	} {
		debug.SetMemoryLimit(tc.limit)
		if got := bodiesMemory(tc.cfg); got != tc.want {
			t.Errorf("limit %d, setting %d: %d bytes, want %d", tc.limit, tc.cfg.MaxBodiesMemory, got, tc.want)
		}
	}
	debug.SetMemoryLimit(math.MaxInt64)
	if got := bodiesMemory(&byLimit); got < leastBodies || got > 1<<44 {
		t.Errorf("without a limit: %d bytes", got)
	}
}
