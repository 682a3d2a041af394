//go:build !386 && !s390x && !race

package sock

import (
	"syscall"
	"unsafe"
)

// quickly is the size up to which the scheduler is not told of a call: the kernel
// copies as much in some 15 µs. Longer ones could keep a collection waiting. A
// prompt of 64 KiB is below it with what stands around it.
const maxRawCall = 96 << 10

// Recv reads what is there, without waiting. io.EOF is 0 bytes without an error.
func Recv(fd uintptr, p []byte) (int, error) { return recv(fd, p, 0) }

// Peek looks at what Recv would give.
func Peek(fd uintptr, p []byte) (int, error) { return recv(fd, p, syscall.MSG_PEEK) }

func recv(fd uintptr, p []byte, flags uintptr) (int, error) {
	for {
		var n uintptr
		var e syscall.Errno
		if len(p) <= maxRawCall {
			n, _, e = syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
		} else {
			n, _, e = syscall.Syscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
		}
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, e
		}
	}
}

// sendPiece writes as much of one piece as the socket takes now.
func sendPiece(fd uintptr, p []byte) (int, error) {
	for {
		var n uintptr
		var e syscall.Errno
		if len(p) <= maxRawCall {
			n, _, e = syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), syscall.MSG_NOSIGNAL, 0, 0)
		} else {
			n, _, e = syscall.Syscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), syscall.MSG_NOSIGNAL, 0, 0)
		}
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil
		default:
			return 0, e
		}
	}
}

// piecesAtOnce is how many pieces one system call sends: far fewer than the
// kernel takes, since they are listed on the stack, and more than a request has
// that was edited everywhere.
const maxPiecesPerCall = 32

// Send writes as much of the pieces as the socket takes now, which is no error.
func Send(fd uintptr, pieces [][]byte) (sent int, err error) {
	if len(pieces) == 1 {
		return sendPiece(fd, pieces[0])
	}
	for len(pieces) > 0 {
		var iovecs [maxPiecesPerCall]syscall.Iovec
		n, size := 0, 0
		for n < len(iovecs) && len(pieces) > 0 {
			if p := pieces[0]; len(p) > 0 {
				iovecs[n].Base = &p[0]
				iovecs[n].SetLen(len(p))
				size += len(p)
				n++
			}
			pieces = pieces[1:]
		}
		if n == 0 {
			break
		}
		m, err := sendVector(fd, iovecs[:n], size)
		sent += m
		if err != nil || m < size {
			return sent, err
		}
	}
	return sent, nil
}

// sendVector sends pieces of size bytes in all.
func sendVector(fd uintptr, pieces []syscall.Iovec, size int) (int, error) {
	for {
		var n uintptr
		var e syscall.Errno
		if size <= maxRawCall {
			n, _, e = syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(pieces))), uintptr(len(pieces)))
		} else {
			n, _, e = syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(pieces))), uintptr(len(pieces)))
		}
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil
		default:
			return 0, e
		}
	}
}
