//go:build darwin || freebsd || netbsd || openbsd

package upstream

// talks tells whether a request of so many pieces goes the short way of
// talkOnce. Here syscall has no vectored write, which these systems want called
// through their C library.
func talks(pieces int) bool { return pieces == 1 }

// say writes as much of the one piece as the socket takes now.
func say(fd int, pieces [][]byte) (sent int, err error) { return sayPiece(fd, pieces[0]) }
