package wire

import (
	"net"
	"time"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// peekAfter is the longest time that a Read which has sent something waits before it
// looks at the socket. The poller reports only what arrives after the sending. Data that
// arrived before would be missed: from a peer that sends before its turn, or that has
// closed its side and still reads.
const peekAfter = time.Second

// Conn is a connection whose ends send in turns, such as request and response. Queue only
// keeps a message; the Read that waits for the other end sends it. That saves one look at
// a socket that must be empty. A Conn belongs to one goroutine. Another goroutine may
// write to Sock while nothing is queued, and any goroutine may call Close.
type Conn struct {
	tcp       *sock.Conn
	peekAfter time.Duration

	queued     [][]byte // part of pieces, not sent yet
	pieces     [2][]byte
	sendFailed bool
	op         operation
}

// NewConn makes a Conn of a connection, which it then owns.
func NewConn(tcp *net.TCPConn) (*Conn, error) {
	quick, err := sock.New(tcp)
	if err != nil {
		return nil, err
	}
	c := &Conn{tcp: quick, peekAfter: peekAfter}
	c.op.init(c)
	return c, nil
}

// Queue keeps a and b, which may be empty, for the next Read, Write or Flush, which sends
// both in one write. Until then they must not change, and Queue must not be called again.
func (c *Conn) Queue(a, b []byte) {
	c.pieces = [2][]byte{a, b}
	c.queued = c.pieces[:]
	if len(b) == 0 {
		c.queued = c.pieces[:1]
	}
}

// Flush sends what is queued, if anything is.
func (c *Conn) Flush() error {
	if len(c.queued) == 0 {
		return nil
	}
	_, err := c.tcp.WriteAll(c.queued)
	c.sent(err)
	return err
}

// sent ends the sending of the queued pieces, and drops them.
func (c *Conn) sent(err error) {
	c.sendFailed = c.sendFailed || err != nil
	c.pieces, c.queued = [2][]byte{}, nil
}

// SendFailed reports whether a queued message could not be sent.
func (c *Conn) SendFailed() bool { return c.sendFailed }

// Write implements io.Writer. It sends at once.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.Flush(); err != nil {
		return 0, err
	}
	return c.tcp.Write(p)
}

// WriteEach writes the pieces that next gives, each in its own write, until next gives
// none. A piece must not change until next is called again.
func (c *Conn) WriteEach(next func() []byte) error {
	if err := c.Flush(); err != nil {
		return err
	}
	return c.op.writeEach(c.tcp, next)
}

// Sock is the underlying connection. Only Conn may read from it.
func (c *Conn) Sock() *sock.Conn { return c.tcp }

// Close ends the connection, also while another goroutine uses it.
func (c *Conn) Close() error { return c.tcp.Close() }
