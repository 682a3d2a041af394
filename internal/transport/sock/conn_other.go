//go:build !linux || 386 || s390x

package sock

import (
	"net"
	"syscall"
)

// Conn is a TCP connection.
type Conn struct {
	*net.TCPConn

	raw syscall.RawConn
}

// New returns a Conn that wraps tcp.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Conn{TCPConn: tcp, raw: raw}, nil
}

// Raw returns the connection for the caller's own system calls.
func (c *Conn) Raw() syscall.RawConn { return c.raw }

// WriteAll writes all pieces. After an error it returns the pieces that were not written.
// It modifies the slices, but never the bytes.
func (c *Conn) WriteAll(pieces [][]byte) (rest [][]byte, err error) {
	v := net.Buffers(pieces)
	_, err = v.WriteTo(c.TCPConn)
	return v, err
}
