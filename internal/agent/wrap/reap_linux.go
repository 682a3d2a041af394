package wrap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Adopt makes this program the parent of every orphan among its descendants, in place of
// process 1. From then on the program must run a Reaper.
func Adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	return nil
}

// peekDead returns the process id of a zombie child without reaping it; 0 if there is none.
func peekDead() int {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return 0 // ECHILD: no child at all
	}
	// Three ints, then a union that is aligned like a pointer, si_pid first.
	ints := (*[5]int32)(unsafe.Pointer(&info))
	if unsafe.Sizeof(uintptr(0)) == 8 {
		return int(ints[4])
	}
	return int(ints[3])
}
