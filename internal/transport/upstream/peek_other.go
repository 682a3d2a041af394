//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package upstream

// peekFD returns peekNothing, because peeking is not implemented on this system. A closed
// connection is detected by using it, and an early response after the whole request was sent.
func peekFD(uintptr) peekResult { return peekNothing }
