//go:build darwin || freebsd || netbsd || openbsd || (linux && (386 || s390x || race))

package sock

import "syscall"

// The functions of package syscall inform the race detector that a send happens before
// its receipt, so builds with -race use them on Linux, too.

// Recv reads the available bytes without waiting. At the end of the stream it returns
// 0 bytes and no error.
func Recv(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Peek is Recv without consuming the bytes.
func Peek(fd uintptr, p []byte) (int, error) {
	for {
		n, _, err := syscall.Recvfrom(int(fd), p, syscall.MSG_PEEK)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Send writes as much of the pieces as the socket accepts without blocking, with one
// system call for each piece. A partial write is not an error.
func Send(fd uintptr, pieces [][]byte) (sent int, err error) {
	for _, p := range pieces {
		for len(p) > 0 {
			n, err := syscall.Write(int(fd), p)
			switch {
			case err == syscall.EINTR:
				continue
			case err == syscall.EAGAIN:
				return sent, nil
			case err != nil:
				return sent, err
			}
			sent, p = sent+n, p[n:]
		}
	}
	return sent, nil
}
