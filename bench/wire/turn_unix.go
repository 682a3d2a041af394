//go:build linux || darwin || freebsd || netbsd || openbsd

package wire

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// turn is a Read that begins with sending, or a WriteEach.
type turn struct {
	step, each func(fd uintptr) bool // for Raw, made once

	next func() []byte
	out  [1][]byte // what is left of the piece

	in       []byte
	n        int
	err, bad error // of reading and of sending

	// limited tells that a read deadline is set. It goes off once in a while,
	// whatever is read then: to set one for every Read costs as much as a look.
	limited bool
}

func (t *turn) init(c *Conn) { t.step, t.each = c.takeTurn, t.eachStep }

// Read implements io.Reader. It sends what was said first, whose error is its own.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.read(p)
	if err == nil || !c.turn.limited || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	c.turn.limited = false
	if err := c.tcp.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	if err := c.Flush(); err != nil { // it may have gone off before the sending
		return 0, err
	}
	return c.tcp.Read(p)
}

// read may find that the deadline is over, whatever it does.
func (c *Conn) read(p []byte) (int, error) {
	if len(c.said) == 0 || len(p) == 0 {
		return c.tcp.Read(p) // it looks before it waits
	}
	t := &c.turn
	if !t.limited {
		if err := c.tcp.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
			return 0, err
		}
		t.limited = true
	}
	t.in, t.n, t.err, t.bad = p, 0, nil, nil
	err := c.tcp.Raw().Read(t.step)
	t.in = nil
	switch {
	case t.bad != nil:
		err = c.tcp.OpError("write", t.bad)
		c.went(err)
		return 0, err
	case err != nil:
		return 0, err
	case len(c.said) > 0: // the socket is full
		if err := c.Flush(); err != nil {
			return 0, err
		}
		return c.tcp.Read(p)
	case t.err != nil:
		return 0, c.tcp.OpError("read", t.err)
	case t.n == 0:
		return 0, io.EOF
	}
	return t.n, nil
}

// takeTurn is what Read does with the socket; false waits until there is something
// to read.
func (c *Conn) takeTurn(fd uintptr) bool {
	t := &c.turn
	if len(c.said) > 0 {
		n, err := sock.Send(fd, c.said)
		c.said = sock.Consume(c.said, n)
		if t.bad = err; err != nil || len(c.said) > 0 {
			return true
		}
		c.went(nil)
		return false
	}
	t.n, t.err = sock.Recv(fd, t.in)
	return t.err != syscall.EAGAIN //nolint:errorlint // a system call's, unwrapped
}

// writeEach asks the poller for room only where there is none.
func (t *turn) writeEach(tcp *sock.Conn, next func() []byte) error {
	t.next, t.bad = next, nil
	err := tcp.Raw().Write(t.each)
	t.next, t.out[0] = nil, nil
	if t.bad != nil {
		return tcp.OpError("write", t.bad)
	}
	return err
}

// eachStep is what writeEach does with the socket; false waits for room.
func (t *turn) eachStep(fd uintptr) bool {
	for {
		if len(t.out[0]) == 0 {
			if t.out[0] = t.next(); len(t.out[0]) == 0 {
				return true
			}
		}
		n, err := sock.Send(fd, t.out[:])
		if t.bad = err; err != nil {
			return true
		}
		if t.out[0] = t.out[0][n:]; len(t.out[0]) > 0 {
			return false
		}
	}
}
