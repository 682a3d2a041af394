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

// operation is the state of a Read that sends first, or of a WriteEach.
type operation struct {
	sendAndRead, writeAll func(fd uintptr) bool // for Raw, made once

	next func() []byte
	out  [1][]byte // the unsent part of the piece

	in                []byte
	n                 int
	readErr, writeErr error

	// deadlineSet reports whether a read deadline is set. It serves many Reads and expires
	// during one of them, because a deadline for each Read would cost as much as the
	// look that it saves.
	deadlineSet bool
}

func (o *operation) init(c *Conn) { o.sendAndRead, o.writeAll = c.sendAndRead, o.writeStep }

// Read implements io.Reader. It sends what is queued first, and returns the error of that.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.read(p)
	if err == nil || !c.op.deadlineSet || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	c.op.deadlineSet = false
	if err := c.tcp.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	if err := c.Flush(); err != nil { // the deadline may have expired before the sending
		return 0, err
	}
	return c.tcp.Read(p)
}

// read may fail because the deadline has expired, at any of its steps.
func (c *Conn) read(p []byte) (int, error) {
	if len(c.queued) == 0 || len(p) == 0 {
		return c.tcp.Read(p) // it looks at the socket before it waits
	}
	o := &c.op
	if !o.deadlineSet {
		if err := c.tcp.SetReadDeadline(time.Now().Add(c.peekAfter)); err != nil {
			return 0, err
		}
		o.deadlineSet = true
	}
	o.in, o.n, o.readErr, o.writeErr = p, 0, nil, nil
	err := c.tcp.Raw().Read(o.sendAndRead)
	o.in = nil
	switch {
	case o.writeErr != nil:
		err = c.tcp.OpError("write", o.writeErr)
		c.sent(err)
		return 0, err
	case err != nil:
		return 0, err
	case len(c.queued) > 0: // the send buffer of the socket is full
		if err := c.Flush(); err != nil {
			return 0, err
		}
		return c.tcp.Read(p)
	case o.readErr != nil:
		return 0, c.tcp.OpError("read", o.readErr)
	case o.n == 0:
		return 0, io.EOF
	}
	return o.n, nil
}

// sendAndRead is the part of Read that uses the socket. It is called first to send, then
// to read. If it returns false, the poller waits until there is something to read.
func (c *Conn) sendAndRead(fd uintptr) bool {
	o := &c.op
	if len(c.queued) > 0 {
		n, err := sock.Send(fd, c.queued)
		c.queued = sock.Consume(c.queued, n)
		if o.writeErr = err; err != nil || len(c.queued) > 0 {
			return true
		}
		c.sent(nil)
		return false
	}
	o.n, o.readErr = sock.Recv(fd, o.in)
	return o.readErr != syscall.EAGAIN //nolint:errorlint // a system call's, unwrapped
}

// writeEach waits for the poller only when the send buffer of the socket is full.
func (o *operation) writeEach(tcp *sock.Conn, next func() []byte) error {
	o.next, o.writeErr = next, nil
	err := tcp.Raw().Write(o.writeAll)
	o.next, o.out[0] = nil, nil
	if o.writeErr != nil {
		return tcp.OpError("write", o.writeErr)
	}
	return err
}

// writeStep is the part of writeEach that uses the socket. If it returns false, the poller
// waits until the socket can take more.
func (o *operation) writeStep(fd uintptr) bool {
	for {
		if len(o.out[0]) == 0 {
			if o.out[0] = o.next(); len(o.out[0]) == 0 {
				return true
			}
		}
		n, err := sock.Send(fd, o.out[:])
		if o.writeErr = err; err != nil {
			return true
		}
		if o.out[0] = o.out[0][n:]; len(o.out[0]) > 0 {
			return false
		}
	}
}
