//go:build linux || darwin || freebsd || netbsd || openbsd

package upstream

import (
	"io"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// sending is a request on its way: the connection is checked, written and waited for
// without letting go of the socket in between, which saves the read that would find
// nothing yet, and the deadlines of a write that has to wait.
type sendState struct {
	peeked  peekResult // on a reused connection, before the request
	written bool       // as much was written as the socket took
	sent    int        // bytes of it
	size    int        // bytes in all
	sendErr error
	readErr error // of the first read of the answer
}

// sendAndRead looks whether the connection is still good, if it was used before,
// sends the loaded request and reads what comes first of the answer. When the socket
// does not take all of the request, it comes back at once: more tells that the rest
// is still to be sent, and nothing was read.
func (c *conn) sendAndRead() (more bool, sendErr, readErr error) {
	c.sending = sendState{}
	for _, piece := range c.rest {
		c.sending.size += len(piece)
	}
	err := c.raw.Read(c.sendFunc)
	s := &c.sending
	switch {
	case s.peeked != peekNothing:
		sendErr = errNotIdle
	case !s.written:
		sendErr = err // it was closed before
	case s.sendErr != nil:
		sendErr = s.sendErr
	case s.sent < s.size:
		c.rest = sock.Consume(c.rest, s.sent)
		return true, nil, nil
	case err != nil:
		readErr = err
	default:
		readErr = s.readErr
	}
	c.releaseRequest()
	return false, sendErr, readErr
}

// sendStep is what sendAndRead does with the socket; false waits until there is
// something to read.
func (c *conn) sendStep(fd uintptr) bool {
	s := &c.sending
	if !s.written {
		if c.reused {
			if s.peeked = peekFD(fd); s.peeked != peekNothing {
				return true
			}
		}
		s.written = true
		s.sent, s.sendErr = sock.Send(fd, c.rest)
		return s.sendErr != nil || s.sent < s.size
	}
	n, err := sock.Recv(fd, c.buf.Free())
	c.buf.Add(n)
	switch {
	case n > 0:
		c.answered = true
	case err == syscall.EAGAIN: //nolint:errorlint // a system call's, unwrapped
		return false
	case err == nil:
		s.readErr = io.ErrUnexpectedEOF
	default:
		s.readErr = err
	}
	return true
}
