//go:build linux || darwin || freebsd || netbsd || openbsd

package upstream

import (
	"syscall"

	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

// peekFD returns what a read of this non-blocking socket would find.
func peekFD(fd uintptr) peekResult {
	var b [1]byte
	n, err := sock.Peek(fd, b[:])
	switch {
	case err == syscall.EAGAIN: //nolint:errorlint // a system call's, unwrapped
		return peekNothing
	case err != nil || n == 0:
		return peekEnd
	default:
		return peekData
	}
}
