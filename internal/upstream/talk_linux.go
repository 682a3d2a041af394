package upstream

import (
	"syscall"
	"unsafe"
)

// talks tells whether a request of so many pieces goes the short way of
// talkOnce, which also looks whether the connection is idle.
func talks(int) bool { return true }

// piecesAtOnce is how many pieces one system call sends: far fewer than the
// kernel takes, since they are listed on the stack, and more than a request has
// that was edited everywhere.
const piecesAtOnce = 32

// say writes as much of the pieces as the socket takes now, which is no error.
func say(fd int, pieces [][]byte) (sent int, err error) {
	if len(pieces) == 1 {
		return sayPiece(fd, pieces[0])
	}
	for len(pieces) > 0 {
		var room [piecesAtOnce]syscall.Iovec
		n, size := 0, 0
		for n < len(room) && len(pieces) > 0 {
			if p := pieces[0]; len(p) > 0 {
				room[n].Base = &p[0]
				room[n].SetLen(len(p))
				size += len(p)
				n++
			}
			pieces = pieces[1:]
		}
		if n == 0 {
			break
		}
		m, errno := writev(fd, room[:n])
		if errno == syscall.EAGAIN {
			break
		}
		if errno != 0 {
			return sent, errno
		}
		if sent += m; m < size {
			break
		}
	}
	return sent, nil
}

func writev(fd int, pieces []syscall.Iovec) (n int, errno syscall.Errno) {
	for {
		m, _, errno := syscall.Syscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&pieces[0])), uintptr(len(pieces)))
		if errno != syscall.EINTR {
			return int(m), errno
		}
	}
}
