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

// Peek is Recv without consuming the bytes.
func Peek(fd uintptr, p []byte) (int, error) { return recv(fd, p, syscall.MSG_PEEK) }

func recv(fd uintptr, p []byte, flags uintptr) (int, error) {
	return call(syscall.SYS_RECVFROM, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p), flags, len(p))
}

// call makes a system call for n bytes or iovecs at p, and repeats it if a signal interrupts it. size is
// the number of bytes that the kernel may copy.
func call(trap, fd uintptr, p unsafe.Pointer, n int, flags uintptr, size int) (int, error) {
	for {
		var done uintptr
		var e syscall.Errno
		if size <= maxRawCall {
			done, _, e = syscall.RawSyscall6(trap, fd, uintptr(p), uintptr(n), flags, 0, 0)
		} else {
			done, _, e = syscall.Syscall6(trap, fd, uintptr(p), uintptr(n), flags, 0, 0)
		}
		switch e {
		case 0:
			return int(done), nil
		case syscall.EINTR:
		default:
			return 0, e
		}
	}
}

// partial returns the result of a write. EAGAIN is not an error: nothing fits.
func partial(n int, err error) (int, error) {
	if err == syscall.EAGAIN { //nolint:errorlint // a system call's, unwrapped
		err = nil
	}
	return n, err
}

// maxPiecesPerCall bounds the pieces of one system call. Their list is on the stack, so
// it is far shorter than the kernel's limit (IOV_MAX, 1024). A request with every
// possible edit has fewer pieces.
const maxPiecesPerCall = 32

// Send writes as much of the pieces as the socket accepts without blocking. A partial
// write is not an error.
func Send(fd uintptr, pieces [][]byte) (sent int, err error) {
	if len(pieces) == 1 {
		p := pieces[0]
		return partial(call(syscall.SYS_SENDTO, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p), syscall.MSG_NOSIGNAL, len(p)))
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
		m, err := partial(call(syscall.SYS_WRITEV, fd, unsafe.Pointer(&iovecs), n, 0, size))
		sent += m
		if err != nil || m < size {
			return sent, err
		}
	}
	return sent, nil
}
