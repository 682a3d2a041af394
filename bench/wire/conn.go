package wire

import (
	"net"
	"time"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// patience is how long, at most, a Read that has sent something waits before it
// looks whether something has come before that, of which it is not told: nothing
// has, unless the peer talks out of turn, or has ended its side and listens on.
const patience = time.Second

// Conn is a connection whose ends take turns: what is said goes out with the Read
// that waits for the other end's turn. That saves the look at a socket in which
// nothing can be yet. It belongs to one goroutine; another one may write to Sock
// while nothing is said, and any may Close it.
type Conn struct {
	tcp      *sock.Conn
	patience time.Duration

	said [][]byte // in room, not sent yet
	room [2][]byte
	lost bool
	turn turn
}

// NewConn makes a Conn of a connection, which it then owns.
func NewConn(tcp *net.TCPConn) (*Conn, error) {
	quick, err := sock.New(tcp)
	if err != nil {
		return nil, err
	}
	c := &Conn{tcp: quick, patience: patience}
	c.turn.init(c)
	return c, nil
}

// Say sends a and b, which may be empty, in one write, with the next Read, Write
// or Flush. Until then they must not change, and no more may be said.
func (c *Conn) Say(a, b []byte) {
	c.room = [2][]byte{a, b}
	c.said = c.room[:]
	if len(b) == 0 {
		c.said = c.room[:1]
	}
}

// Flush sends what was said, if anything was.
func (c *Conn) Flush() error {
	if len(c.said) == 0 {
		return nil
	}
	_, err := c.tcp.WriteAll(c.said)
	c.went(err)
	return err
}

// went lets go of what was said.
func (c *Conn) went(err error) {
	c.lost = c.lost || err != nil
	c.room, c.said = [2][]byte{}, nil
}

// Lost tells whether something that was said could not be sent.
func (c *Conn) Lost() bool { return c.lost }

// Write implements io.Writer. It sends at once.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.Flush(); err != nil {
		return 0, err
	}
	return c.tcp.Write(p)
}

// WriteEach writes what next gives, each in a write of its own, until that is
// nothing. A piece must stay as it is until the next one is asked for.
func (c *Conn) WriteEach(next func() []byte) error {
	if err := c.Flush(); err != nil {
		return err
	}
	return c.turn.writeEach(c.tcp, next)
}

// Sock is the connection below. Nobody but Conn may read from it.
func (c *Conn) Sock() *sock.Conn { return c.tcp }

// Close ends the connection under whoever uses it.
func (c *Conn) Close() error { return c.tcp.Close() }
