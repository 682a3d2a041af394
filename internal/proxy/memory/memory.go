// Package memory bounds what a proxy takes, by the limit of its container or machine.
package memory

import (
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/pdmesh/pdmesh/internal/config"
)

// garbagePercent is how much garbage may pile up, in per cent of what lives. Little of
// what a request makes lives on, so a collection finds nearly the same each time, and
// with Go's 100 there are four times as many.
const garbagePercent = 400

// Tune lets the garbage collector run seldom, and bounds what that costs: near the
// memory limit it runs as often as it takes. GOGC and GOMEMLIMIT win where they are set.
func Tune() error {
	if !wantsProfiles() {
		// Go samples allocations as soon as a program could ask for them, which
		// this one can (--pprof-listen); that is a hundredth of the whole time.
		runtime.MemProfileRate = 0
	}
	if _, ok := os.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(garbagePercent)
	}
	_, err := memlimit.Set(memlimit.WithProvider(memoryLimit), memlimit.WithRatio(1))
	return err
}

// memoryLimit is nine tenths of the container's memory, or half of the machine's where
// nothing bounds this process: it need not be alone there.
func memoryLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if !errors.Is(err, memlimit.ErrNoLimit) {
		return limit / 10 * 9, err
	}
	limit, err = memlimit.FromSystem()
	return limit / 2, err
}

// Bodies is the bound for all request bodies together. The rest of the memory is
// for buffers that wait for the next body, for what is not yet collected, and
// for streams.
func Bodies(cfg *config.Proxy) int64 {
	if cfg.MaxBodiesMemory > 0 {
		return cfg.MaxBodiesMemory
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return max(limit/2, leastBodies)
	}
	return unlimitedBodies
}

const (
	// leastBodies is enough for the usual long prompts, whatever the limit.
	leastBodies = 16 << 20
	// unlimitedBodies is the bound without a memory limit.
	unlimitedBodies = 1 << 30
)

// Settle collects what the start left behind, so that the first requests
// find that room instead of growing the heap.
func Settle() { runtime.GC() }

// wantsProfiles looks for the setting before settings are read: the rate must
// not change once a program has begun to work.
func wantsProfiles() bool {
	if _, ok := os.LookupEnv("PD_PPROF_LISTEN"); ok {
		return true
	}
	return slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--pprof-listen") })
}
