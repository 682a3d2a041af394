package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// headroom is how much garbage may pile up between two collections. A proxy's
	// live heap is some megabytes, 25 KiB for each open stream, and long prompts
	// for a moment, while every request makes a few KiB of garbage. A fixed share
	// of the live heap, Go's way, is too little for the first and far too much for
	// the others.
	headroom = 8 << 20
	// The bounds of that as a percentage of the live heap. The lower one keeps a
	// large heap from being looked through all the time.
	minPercent, maxPercent = 25, 400
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
	live    []metrics.Sample
	percent int // in force
}

func newPacer() *pacer {
	return &pacer{live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}, percent: maxPercent}
}

// arm has adjust called after the next collection, and so on for ever: the
// collector runs the clean-up of an object that nothing refers to.
func (p *pacer) arm() {
	runtime.AddCleanup(&struct{ _ *pacer }{}, func(p *pacer) {
		p.adjust()
		p.arm()
	}, p)
}

func (p *pacer) adjust() {
	metrics.Read(p.live)
	want := percentFor(p.live[0].Value.Uint64())
	// Setting it stops the program for a moment, so small changes are let be.
	if diff := want - p.percent; diff > p.percent/5 || -diff > p.percent/5 {
		p.percent = want
		debug.SetGCPercent(want)
	}
}

// percentFor gives headroom as a percentage of the live heap.
func percentFor(live uint64) int {
	return int(min(max(headroom*100/max(live, 1), minPercent), maxPercent))
}
