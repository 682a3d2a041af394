//go:build linux || darwin || freebsd || netbsd || openbsd

package upstream

import "syscall"

// peekFD tells what a read of this non-blocking socket would find.
func peekFD(fd uintptr) peeked {
	var b [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return nothing
		case err != nil || n == 0:
			return theEnd
		default:
			return something
		}
	}
}
