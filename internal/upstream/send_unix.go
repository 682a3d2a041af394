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
type sending struct {
	seen    peeked // on a reused connection, before the request
	tried   bool   // as much was written as the socket took
	sent    int    // bytes of it
	size    int    // bytes in all
	sendErr error
	readErr error // of the first read of the answer
}

// sendAndRead looks whether the connection is still good, if it was used before,
// sends the loaded request and reads what comes first of the answer. When the socket
// does not take all of the request, it comes back at once: more tells that the rest
// is still to be sent, and nothing was read.
func (c *conn) sendAndRead() (more bool, sendErr, readErr error) {
	c.way = sending{}
	for _, piece := range c.rest {
		c.way.size += len(piece)
	}
	err := c.raw.Read(c.step)
	w := &c.way
	switch {
	case w.seen != nothing:
		sendErr = errNotIdle
	case !w.tried:
		sendErr = err // it was closed before
	case w.sendErr != nil:
		sendErr = w.sendErr
	case w.sent < w.size:
		c.rest = sock.Cut(c.rest, w.sent)
		return true, nil, nil
	case err != nil:
		readErr = err
	default:
		readErr = w.readErr
	}
	c.unload()
	return false, sendErr, readErr
}

// sendStep is what sendAndRead does with the socket; false waits until there is
// something to read.
func (c *conn) sendStep(fd uintptr) bool {
	w := &c.way
	if !w.tried {
		if c.reused {
			if w.seen = peekFD(fd); w.seen != nothing {
				return true
			}
		}
		w.tried = true
		w.sent, w.sendErr = sock.Send(fd, c.rest)
		return w.sendErr != nil || w.sent < w.size
	}
	n, err := sock.Recv(fd, c.buf.Room())
	c.buf.Add(n)
	switch {
	case n > 0:
		c.answered = true
	case err == syscall.EAGAIN: //nolint:errorlint // a system call's, unwrapped
		return false
	case err == nil:
		w.readErr = io.ErrUnexpectedEOF
	default:
		w.readErr = err
	}
	return true
}
