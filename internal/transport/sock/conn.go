package sock

import (
	"io"
	"net"
	"runtime"
	"syscall"
	"time"
)

// Conn is a TCP connection. One goroutine may read while another writes. The methods of
// net.TCPConn other than Read and Write may be called concurrently.
type Conn struct {
	*net.TCPConn

	raw syscall.RawConn

	// Read passes readBuf to readStep, which sets readN and readErr. readFunc is the
	// method value of readStep, created once to avoid an allocation in each call.
	readBuf  []byte
	readN    int
	readErr  error
	readFunc func(fd uintptr) bool

	// WriteAll and writeStep share these in the same way.
	pending   [][]byte
	single    [1][]byte
	written   int
	writeErr  error
	writeFunc func(fd uintptr) bool
}

// New returns a Conn that wraps tcp.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{TCPConn: tcp, raw: raw}
	c.readFunc, c.writeFunc = c.readStep, c.writeStep
	return c, nil
}

// Raw returns the connection for the caller's own system calls. Raw().Read(f) calls f with
// the descriptor, and again whenever the connection is readable, until f returns true.
func (c *Conn) Raw() syscall.RawConn { return c.raw }

// LimitSilence sets TCP_USER_TIMEOUT on Linux: keep-alives do not run while bytes are unacknowledged, and
// Linux retransmits those for 15 minutes (tcp_retries2). It also bounds how long the peer's receive window
// may be full. A kernel without the option is no error.
func LimitSilence(c syscall.RawConn, d time.Duration) {
	const userTimeout = 18 // TCP_USER_TIMEOUT, in milliseconds
	if runtime.GOOS == "linux" {
		_ = c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout, int(d.Milliseconds()))
		})
	}
}

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

// WriteAll writes all pieces with few system calls. After an error it returns the pieces
// that were not written. It modifies the slices, but never the bytes.
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
