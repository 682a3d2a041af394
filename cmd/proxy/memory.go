package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// gcPercent lets the heap grow to five times what is live before it is
// collected. A proxy's live heap is small (some megabytes, and 25 KiB per open
// stream) while every request makes garbage.
const gcPercent = 400

// wantsProfiles looks for the setting before settings are read: the rate must
// not change once a program has begun to work.
func wantsProfiles() bool {
	if _, ok := os.LookupEnv("PD_PPROF_LISTEN"); ok {
		return true
	}
	return slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--pprof-listen") })
}

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
		debug.SetGCPercent(gcPercent)
	}
	_, err := memlimit.Set()
	return err
}
