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
	in    []byte
	inN   int
	inErr error
	take  func(fd uintptr) bool

	rest   [][]byte
	one    [1][]byte
	sent   int
	outErr error
	give   func(fd uintptr) bool
}

// New makes a Conn of a connection, which it does not own otherwise than a
// net.TCPConn would.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{TCPConn: tcp, raw: raw}
	c.take, c.give = c.takeStep, c.giveStep
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
	c.in = p
	err := c.raw.Read(c.take)
	c.in = nil
	switch {
	case err != nil:
		return 0, err
	case c.inErr != nil:
		return 0, c.Failed("read", c.inErr)
	case c.inN == 0:
		return 0, io.EOF
	}
	return c.inN, nil
}

func (c *Conn) takeStep(fd uintptr) bool {
	c.inN, c.inErr = Recv(fd, c.in)
	return c.inErr != syscall.EAGAIN //nolint:errorlint // a system call's, unwrapped
}

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) {
	c.one[0] = p
	_, err := c.WriteAll(c.one[:])
	c.one[0] = nil
	return c.sent, err
}

// WriteAll writes pieces one behind the other, with as few system calls as
// possible, and gives what an error has left of them. The slices over them are used
// up; the bytes are only read.
func (c *Conn) WriteAll(pieces [][]byte) (rest [][]byte, err error) {
	c.rest, c.sent, c.outErr = pieces, 0, nil
	err = c.raw.Write(c.give)
	rest, c.rest = c.rest, nil
	if err == nil && c.outErr != nil {
		err = c.Failed("write", c.outErr)
	}
	return rest, err
}

func (c *Conn) giveStep(fd uintptr) bool {
	n, err := Send(fd, c.rest)
	c.sent, c.outErr = c.sent+n, err
	c.rest = Cut(c.rest, n)
	return err != nil || len(c.rest) == 0
}
