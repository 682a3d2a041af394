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

// New makes a Conn of a connection.
func New(tcp *net.TCPConn) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Conn{TCPConn: tcp, raw: raw}, nil
}

// Raw is for callers with system calls of their own.
func (c *Conn) Raw() syscall.RawConn { return c.raw }

// WriteAll writes pieces one after the other, and returns the rest that an error has
// left. It changes the slices, but never the bytes.
func (c *Conn) WriteAll(pieces [][]byte) (rest [][]byte, err error) {
	v := net.Buffers(pieces)
	_, err = v.WriteTo(c.TCPConn)
	return v, err
}
