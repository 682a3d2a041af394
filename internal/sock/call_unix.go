//go:build darwin || freebsd || netbsd || openbsd || (linux && (386 || s390x || race))

package sock

import "syscall"

// These are package syscall's own calls, which the race detector knows: what is
// sent happens before it is received.

// Recv reads what is there, without waiting. io.EOF is 0 bytes without an error.
func Recv(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Peek looks at what Recv would give.
func Peek(fd uintptr, p []byte) (int, error) {
	for {
		n, _, err := syscall.Recvfrom(int(fd), p, syscall.MSG_PEEK)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Send writes as much of the pieces as the socket takes now, which is no error. It
// takes a call for each.
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
