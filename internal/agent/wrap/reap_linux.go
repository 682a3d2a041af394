package wrap

import (
	"fmt"
	"syscall"
	"unsafe"
)

// From the kernel's headers; package syscall has the numbers of the calls only.
const (
	prSetChildSubreaper = 36
	pAll                = 0
	wNoWait             = 0x01000000
	siginfoSize         = 128
)

// Adopt makes this program the parent of every orphan among its descendants,
// which would else go to process 1. From then on it must run a Reaper.
func Adopt() error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("adopt orphans: %w", errno)
	}
	return nil
}

// peekDead returns the process id of a zombie child, and
// leaves it so; 0 when there is none.
func peekDead() int {
	var info [siginfoSize / 4]int32
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info[0])),
		syscall.WEXITED|syscall.WNOHANG|wNoWait, 0, 0)
	if errno != 0 {
		return 0 // ECHILD: no child at all
	}
	// Three ints, then a union that is aligned like a pointer, si_pid first.
	if unsafe.Sizeof(uintptr(0)) == 8 {
		return int(info[4])
	}
	return int(info[3])
}
