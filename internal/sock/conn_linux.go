//go:build !386 && !s390x

package sock

import (
	"io"
	"net"
	"syscall"
)

// Conn is a TCP connection. One goroutine may read and another write; what else
// net.TCPConn has may be used beside that, but not its Read and Write.
type Conn struct {
	*net.TCPConn

	raw syscall.RawConn

	// What a call gives to its step, which is made once, and gets from it.
	readBuf  []byte
	readN    int
	readErr  error
	readFunc func(fd uintptr) bool

	pending   [][]byte
	single    [1][]byte
	written   int
	writeErr  error
	writeFunc func(fd uintptr) bool
}

// New makes a Conn of a connection, which it does not own otherwise than a
// net.TCPConn would.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{TCPConn: tcp, raw: raw}
	c.readFunc, c.writeFunc = c.readStep, c.writeStep
	return c, nil
}

// Raw is for steps of the caller's own: f is called with the descriptor, and again
// when there is something to read, until it gives true.
func (c *Conn) Raw() syscall.RawConn { return c.raw }

// Read implements io.Reader.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.readBuf = p
	err := c.raw.Read(c.readFunc)
	c.readBuf = nil
	switch {
	case err != nil:
		return 0, err
	case c.readErr != nil:
		return 0, c.OpError("read", c.readErr)
	case c.readN == 0:
		return 0, io.EOF
	}
	return c.readN, nil
}

func (c *Conn) readStep(fd uintptr) bool {
	c.readN, c.readErr = Recv(fd, c.readBuf)
	return c.readErr != syscall.EAGAIN //nolint:errorlint // a system call's, unwrapped
}

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) {
	c.single[0] = p
	_, err := c.WriteAll(c.single[:])
	c.single[0] = nil
	return c.written, err
}

// WriteAll writes pieces one behind the other, with as few system calls as
// possible, and gives what an error has left of them. The slices over them are used
// up; the bytes are only read.
func (c *Conn) WriteAll(pieces [][]byte) (rest [][]byte, err error) {
	c.pending, c.written, c.writeErr = pieces, 0, nil
	err = c.raw.Write(c.writeFunc)
	rest, c.pending = c.pending, nil
	if err == nil && c.writeErr != nil {
		err = c.OpError("write", c.writeErr)
	}
	return rest, err
}

func (c *Conn) writeStep(fd uintptr) bool {
	n, err := Send(fd, c.pending)
	c.written, c.writeErr = c.written+n, err
	c.pending = Consume(c.pending, n)
	return err != nil || len(c.pending) == 0
}
