package main

import (
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// gcPercent lets the heap grow to five times what is live before it is
// collected. A proxy's live heap is small (some megabytes, and 25 KiB per open
// stream) while every request makes garbage.
const gcPercent = 400

// tuneMemory fits the garbage collector to a proxy, and to the memory limit of
// the container where there is one: near that, memory is collected earlier
// instead of running into the limit. GOGC and GOMEMLIMIT win where they are set.
func tuneMemory() error {
	if _, ok := os.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(gcPercent)
	}
	_, err := memlimit.Set()
	return err
}
