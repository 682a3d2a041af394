//go:build linux || darwin || freebsd || netbsd || openbsd

package upstream

import (
	"io"
	"syscall"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// talk is a request on its way: checked, written and waited for without letting
// go of the socket in between, which saves the read that would find nothing yet,
// and the deadlines of a write that has to wait.
type talk struct {
	said   bool // as much was written as the socket took
	sent   int  // bytes of it
	size   int  // bytes in all
	sayErr error
	seen   peeked // on a reused connection, before the request
	looked bool   // for the answer, before waiting for it
	hear   error  // how the first read of the answer failed
}

// talks tells that requests go the short way of talkOnce, which also looks whether
// the connection is idle.
const talks = true

// talkOnce looks whether the connection is still good, if it was used before, sends
// the loaded request and reads what comes first of the answer. When the socket does
// not take all of the request, it comes back at once: more tells that the rest is
// still to be sent, and nothing was read.
func (c *conn) talkOnce() (more bool, sendErr, readErr error) {
	c.talk = talk{}
	for _, piece := range c.rest {
		c.talk.size += len(piece)
	}
	err := c.raw.Read(c.step)
	t := &c.talk
	switch {
	case t.seen != nothing:
		sendErr = errNotIdle
	case !t.said:
		sendErr = err // it was closed before
	case t.sayErr != nil:
		sendErr = t.sayErr
	case t.sent < t.size:
		c.rest = sock.Cut(c.rest, t.sent)
		return true, nil, nil
	case err != nil:
		readErr = err
	default:
		readErr = t.hear
	}
	c.unload()
	return false, sendErr, readErr
}

// takeStep is what talkOnce does with the socket; false waits until there is
// something to read. The look before that is for engines that answer at once: then
// the answer is there as soon as those who wait for the processor had it.
func (c *conn) takeStep(fd uintptr) bool {
	t := &c.talk
	if !t.said {
		if c.reused {
			if t.seen = peekFD(fd); t.seen != nothing {
				return true
			}
		}
		t.said = true
		t.sent, t.sayErr = sock.Send(fd, c.rest)
		if t.sayErr != nil || t.sent < t.size {
			return true
		}
		c.tcp.Waits(fd) // the last answer may have been a stream in a hurry
		if t.looked = c.eager && c.hunch.Try(); !t.looked {
			return false
		}
	} else {
		sock.Woken()
	}
	c.buf, _ = readBuffers.Get().(*[]byte)
	n, err := sock.Recv(fd, *c.buf)
	if t.looked {
		t.looked = false
		c.hunch.Found(n > 0)
	}
	if n > 0 {
		c.r, c.w, c.heard = 0, n, true
		return true
	}
	c.recycle()
	if err == syscall.EAGAIN { //nolint:errorlint // a system call's, unwrapped
		c.tcp.Waits(fd)
		return false
	}
	if t.hear = err; err == nil {
		t.hear = io.ErrUnexpectedEOF
	}
	return true
}
