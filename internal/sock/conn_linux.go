//go:build !386 && !s390x

package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
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

	low   int // bytes that wake a reader, if that is more than one
	want  int // what low should be
	began bool
	await func(fd uintptr) bool
}

// New makes a Conn of a connection, which it does not own otherwise than a
// net.TCPConn would.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{TCPConn: tcp, raw: raw}
	c.take, c.give, c.await = c.takeStep, c.giveStep, c.awaitStep
	return c, nil
}

// Raw is for steps of the caller's own: f is called with the descriptor, and again
// when there is something to read, until it gives true. Before it gives false it
// calls Waits.
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
	if c.inErr != syscall.EAGAIN { //nolint:errorlint // a system call's, unwrapped
		return true
	}
	c.Waits(fd)
	return false
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

// Gather waits until n bytes are there to be read, the peer has ended its side, or
// d has passed, and reads nothing. Until then nothing that comes wakes anybody,
// unless the kernel has no room for it: a packet takes a kilobyte or so of the
// socket's buffer, however little it holds.
// The next Read that finds nothing waits for a single byte again. No read deadline
// may be set. An error is one that Read would give.
func (c *Conn) Gather(n int, d time.Duration) error {
	c.want, c.began = n, false
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	err := c.raw.Read(c.await)
	if bad := c.SetReadDeadline(time.Time{}); bad != nil {
		return bad
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// awaitStep is called before the wait and, if there was one, after it.
func (c *Conn) awaitStep(fd uintptr) bool {
	if c.began {
		return true
	}
	c.began = true
	if c.low == c.want {
		return unread(fd) >= c.want
	}
	// If there are as many already, this wakes us.
	if enough(fd, c.want) != nil {
		return true // then it is read as it comes
	}
	c.low = c.want
	return false
}

// Waits makes a single byte enough for the next wake-up.
func (c *Conn) Waits(fd uintptr) {
	if c.low > 1 && enough(fd, 1) == nil { // it fails for no socket
		c.low = 1
	}
}
