//go:build !386 && !s390x && !race

package sock

import (
	"syscall"
	"unsafe"
)

// maxRawCall is the size in bytes up to which a call bypasses the scheduler: the kernel
// copies that much in about 15 µs. A longer call could delay a garbage collection. A
// request with a prompt of 64 KiB fits.
const maxRawCall = 96 << 10

// Recv reads the available bytes without waiting. At the end of the stream it returns
// 0 bytes and no error.
func Recv(fd uintptr, p []byte) (int, error) { return recv(fd, p, 0) }

// Peek returns what Recv would, without consuming it.
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

// sendPiece writes as much of one piece as the socket accepts without blocking.
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

// maxPiecesPerCall bounds the pieces of one system call. Their list is on the stack, so
// it is far shorter than the kernel's limit (IOV_MAX, 1024). A request with every
// possible edit has fewer pieces.
const maxPiecesPerCall = 32

// Send writes as much of the pieces as the socket accepts without blocking. A partial
// write is not an error.
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

// sendVector sends pieces of size bytes in total.
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
