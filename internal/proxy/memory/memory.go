// Package memory sets the memory limits of a proxy from those of its container or machine.
package memory

import (
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// garbagePercent is GOGC. Requests leave little live memory, so a higher value than Go's 100
// saves three of four collections.
const garbagePercent = 400

// Tune sets GOGC and GOMEMLIMIT unless the environment has them: the garbage collector runs
// rarely, and more often near the memory limit. Heap profiles are empty from then on.
func Tune() error {
	// Go samples allocations in programs that link pprof, which uses 1% of the CPU.
	runtime.MemProfileRate = 0
	if _, ok := os.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(garbagePercent)
	}
	_, err := memlimit.Set(memlimit.WithProvider(memoryLimit), memlimit.WithRatio(1))
	return err
}

// Profile enables heap profiles again, at Go's default rate. Call it as early as possible: a profile
// lacks earlier allocations.
func Profile() { runtime.MemProfileRate = 512 << 10 }

// memoryLimit returns nine tenths of the container's memory, or half of the machine's without
// such a limit, because other processes share it.
func memoryLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if !errors.Is(err, memlimit.ErrNoLimit) {
		return limit / 10 * 9, err
	}
	limit, err = memlimit.FromSystem()
	return limit / 2, err
}

// Bodies returns the limit for all request bodies together. The rest of the memory is for
// pooled buffers, garbage and streams.
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
	// leastBodies is the minimum under any memory limit; it is enough for ordinary long prompts.
	leastBodies = 16 << 20
	// unlimitedBodies is the bound without a memory limit.
	unlimitedBodies = 1 << 30
)

// Settle collects the garbage of the start, so that the first requests do not grow the heap.
func Settle() { runtime.GC() }
