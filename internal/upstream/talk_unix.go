//go:build linux || darwin || freebsd || netbsd || openbsd

package upstream

import (
	"io"
	"syscall"
)

// talk is a small request on its way: checked, written and waited for without
// letting go of the socket in between, which saves the read that would find
// nothing yet.
type talk struct {
	said   bool // the request was written, at least in part
	sent   int  // bytes of it
	sayErr error
	seen   peeked // on a reused connection, before the request
	hear   error  // how the first read of the answer failed
}

// canTalk tells that talkOnce exists on this system.
const canTalk = true

// talkOnce looks whether the connection is still good, if it was used before,
// sends a request of one piece and reads what comes first of the answer.
func (c *conn) talkOnce() (sendErr, readErr error) {
	c.talk = talk{}
	err := c.raw.Read(c.step)
	t := &c.talk
	switch {
	case t.seen != nothing:
		return errNotIdle, nil
	case !t.said:
		return err, nil // it was closed before
	case t.sayErr != nil:
		return t.sayErr, nil
	case t.sent < len(c.rest[0]): // the socket is full
		_, err = c.tcp.Write(c.rest[0][t.sent:])
		return err, nil
	case err != nil:
		return nil, err
	}
	return nil, t.hear
}

// takeStep is what talkOnce does with the socket; false waits until there is
// something to read.
func (c *conn) takeStep(fd uintptr) bool {
	t := &c.talk
	if !t.said {
		if c.reused {
			if t.seen = peekFD(fd); t.seen != nothing {
				return true
			}
		}
		t.said = true
		for {
			t.sent, t.sayErr = syscall.Write(int(fd), c.rest[0])
			if t.sayErr != syscall.EINTR { //nolint:errorlint // as it comes from the kernel
				break
			}
		}
		t.sent = max(t.sent, 0)
		if t.sayErr == syscall.EAGAIN { //nolint:errorlint // as it comes from the kernel
			t.sayErr = nil
		}
		return t.sayErr != nil || t.sent < len(c.rest[0])
	}
	c.buf, _ = readBuffers.Get().(*[]byte)
	for {
		n, err := syscall.Read(int(fd), *c.buf)
		switch {
		case err == syscall.EINTR: //nolint:errorlint // as it comes from the kernel
			continue
		case n > 0:
			c.r, c.w, c.heard = 0, n, true
			return true
		}
		c.recycle()
		if err == syscall.EAGAIN { //nolint:errorlint // as it comes from the kernel
			return false
		}
		if t.hear = err; err == nil {
			t.hear = io.ErrUnexpectedEOF
		}
		return true
	}
}
