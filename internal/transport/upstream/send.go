package upstream

import (
	"io"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

// sendState is the state of one sendAndRead, which checks the connection, writes the
// request and waits for the response in one call of the poller. That avoids a read that
// would return EAGAIN, and the deadlines of a blocking write.
type sendState struct {
	peeked  peekResult // on a reused connection, before the request
	written bool       // a write was made
	sent    int        // bytes written
	size    int        // bytes of the request
	sendErr error
	readErr error // of the first read of the response
}

// sendAndRead checks that a reused connection is still idle, sends the request and
// reads the first bytes of the response. If the socket accepts only part of the request,
// it returns immediately: more reports whether the rest must still be sent.
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
		sendErr = err // closed before the write
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

// sendStep is the poller callback of sendAndRead. If it returns false, the poller calls it
// again when the socket is readable.
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
