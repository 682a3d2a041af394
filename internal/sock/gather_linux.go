//go:build !386 && !s390x

package sock

import (
	"syscall"
	"unsafe"
)

// enough sets how many bytes there must be for a wake-up.
func enough(fd uintptr, n int) error {
	v := int32(n)
	_, _, e := syscall.RawSyscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	if e != 0 {
		return e
	}
	return nil
}

// unread is how many bytes there are.
func unread(fd uintptr) int {
	var n int32
	_, _, e := syscall.RawSyscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&n))) // FIONREAD, as sockets call it
	if e != 0 {
		return 0
	}
	return int(n)
}
