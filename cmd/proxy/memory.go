package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/pdmesh/pdmesh/internal/config"
)

const (
	// maxHeadroom is how much garbage may pile up between two collections. A
	// proxy's live heap is some megabytes, 25 KiB for each open stream, and long
	// prompts for a moment, while every request makes a few KiB of garbage. A fixed
	// share of the live heap, Go's way, is too little for the first and far too much
	// for the others.
	maxHeadroom = 8 << 20
	// minHeadroom is enough where little garbage is made, as by few requests with
	// long prompts: there memory is worth more than the few collections.
	minHeadroom = 1 << 20
	// collectEvery is the time that the garbage of which should fit in between.
	// What is allocated and then kept is not garbage: prompts that come all at
	// once must not make room for as much again.
	collectEvery = 400 * time.Millisecond
	// lookAfter is how long after a collection the heap is looked at again, and
	// lookLast is how long after that once more: if no other collection has come by
	// then, less garbage is made than it was, and the room is too large.
	lookAfter, lookLast = 25 * time.Millisecond, 2 * collectEvery
	// A collection costs what there is to look through: for each litter of that
	// (what 4 instances and a few requests take) the time and the most garbage in
	// between are longer, and beyond fewLitters by three times as much, since it is
	// less at hand, up to mostLitters times. A thousand instances with a warm
	// connection each are two litters, which makes three times; long prompts are none,
	// nothing is looked for in them.
	litter      = 2 << 20
	mostLitters = 6
	fewLitters  = 1.5
	// The bounds of all that as a percentage of the live heap. The lower one keeps a
	// large heap from being looked through all the time; a heap that is not
	// large is looked through so fast that less will do.
	minPercent, maxPercent = 25, 400
	large                  = 32 << 20
)

// tuneMemory fits the garbage collector to a proxy, and to the memory limit of
// the container where there is one: near that, memory is collected earlier
// instead of running into the limit. GOGC and GOMEMLIMIT win where they are set.
func tuneMemory() error {
	if !wantsProfiles() {
		// Go samples allocations as soon as a program could ask for them, which
		// this one can (--pprof-listen); that is a hundredth of the whole time.
		runtime.MemProfileRate = 0
	}
	if _, ok := os.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(maxPercent)
		newPacer().arm()
	}
	_, err := memlimit.Set()
	return err
}

// bodiesMemory is the bound for all request bodies together. The rest of the memory is
// for spare buffers, a quarter of the bodies' at most, for what is not yet collected, and
// for streams.
func bodiesMemory(cfg *config.Proxy) int64 {
	if cfg.MaxBodiesMemory > 0 {
		return cfg.MaxBodiesMemory
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return max(limit/2, leastBodies)
	}
	if all, err := memlimit.FromSystem(); err == nil && all > 0 && all < math.MaxInt64 {
		return max(int64(all/4), leastBodies)
	}
	return unknownBodies
}

const (
	// leastBodies is enough for the usual long prompts, whatever the limit.
	leastBodies = 16 << 20
	// unknownBodies is the bound on a machine that does not tell its memory.
	unknownBodies = 1 << 30
)

// settleMemory collects what the start left behind, so that the first requests
// find that room instead of growing the heap.
func settleMemory() { runtime.GC() }

// wantsProfiles looks for the setting before settings are read: the rate must
// not change once a program has begun to work.
func wantsProfiles() bool {
	if _, ok := os.LookupEnv("PD_PPROF_LISTEN"); ok {
		return true
	}
	return slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--pprof-listen") })
}

// pacer sets the collector's percentage anew after every collection.
type pacer struct {
	mu      sync.Mutex       // guards the rest
	heap    []metrics.Sample // live bytes, bytes found to be garbage so far, bytes to look through
	percent int              // in force
	since   time.Time        // when the counting of garbage began, and
	freed   uint64           // how much there had been
	room    uint64           // the headroom of the time before
	again   *time.Timer
	last    bool // again is for the last time
}

func newPacer() *pacer {
	return &pacer{
		heap:    []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/frees:bytes"}, {Name: "/gc/scan/heap:bytes"}},
		percent: maxPercent, since: time.Now(),
	}
}

// arm has adjust called after the next collection, and so on for ever: the
// collector runs the clean-up of an object that nothing refers to.
func (p *pacer) arm() {
	runtime.AddCleanup(&struct{ _ *pacer }{}, func(p *pacer) {
		p.adjust()
		p.arm()
		p.lookAgain()
	}, p)
}

// lookAgain has adjust called once more soon. A collection that begins before
// the object is there leaves it be: while the heap grows fast, with as many
// prompts as come at once, one may follow the other so closely, and the
// percentage would be that for a smaller heap until the next. And it is called
// when no collection came for long, or the start's would be in force until then.
func (p *pacer) lookAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = false
	if p.again == nil {
		p.again = time.AfterFunc(lookAfter, p.look)
		return
	}
	p.again.Reset(lookAfter)
}

// look sets the timer first: a collection while it adjusts sets it anew.
func (p *pacer) look() {
	p.mu.Lock()
	if !p.last {
		p.last = true
		p.again.Reset(lookLast)
	}
	p.mu.Unlock()
	p.adjust()
}

func (p *pacer) adjust() {
	p.mu.Lock()
	defer p.mu.Unlock()
	metrics.Read(p.heap)
	room := p.headroom(time.Now(), p.heap[1].Value.Uint64(), p.heap[2].Value.Uint64())
	want := percentFor(p.heap[0].Value.Uint64(), room)
	// Setting it stops the program for a moment, so small changes are let be.
	if diff := want - p.percent; diff > p.percent/5 || -diff > p.percent/5 {
		p.percent = want
		debug.SetGCPercent(want)
	}
}

// headroom gives what fits now that so much was freed in all, and scan is to be
// looked through. Garbage is counted for at least collectEvery: what a few
// milliseconds bring says little, at the start or when prompts come that have to
// be kept, and then collections come thick and fast. Until then, what the time
// before called for will do.
func (p *pacer) headroom(now time.Time, freed, scan uint64) uint64 {
	in := now.Sub(p.since)
	room := headroomFor(freed-p.freed, max(in, collectEvery), scan)
	if in < collectEvery {
		return max(room, p.room)
	}
	p.since, p.freed, p.room = now, freed, room
	return room
}

// headroomFor gives the headroom where that much garbage is made in that time,
// and so many bytes are to be looked through.
func headroomFor(garbage uint64, in time.Duration, scan uint64) uint64 {
	litters := max(float64(scan)/litter, 1)
	litters = min(litters+2*max(litters-fewLitters, 0), mostLitters)
	rate := float64(garbage) / max(in.Seconds(), 1e-9)
	return uint64(min(max(litters*rate*collectEvery.Seconds(), minHeadroom), litters*maxHeadroom))
}

// percentFor gives headroom as a percentage of the live heap.
func percentFor(live, headroom uint64) int {
	lower := max(min(minPercent, live*minPercent/large), 1)
	return int(min(max(headroom*100/max(live, 1), lower), maxPercent))
}
