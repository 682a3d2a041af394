// Package framing refuses requests of which two readers could see the end in two
// places, before net/http reads them. net/http takes some of those, the standard
// says 400 (RFC 9112, 5.2 and 6): a request with both a Content-Length and a
// Transfer-Encoding, with several lengths, also equal ones, with a folded header
// line, or a Transfer-Encoding in HTTP/1.0. What another proxy in front of this one
// read in another way, a client could make pass for a request of somebody else.
package framing

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// errDoubtful is what net/http gets instead of the rest of such a head. It answers
// errors that are not the network's with 400 and closes.
var errDoubtful = errors.New("where the request ends is in doubt")

// Listener gives connections of l that are checked.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(nc), nil
}

// Conn checks the requests that come on nc, which begins with one.
func Conn(nc net.Conn) net.Conn { return &conn{Conn: nc} }

type conn struct {
	net.Conn
	scan   scanner
	bad    atomic.Bool
	spared bool // see refuse
	closed atomic.Bool
}

const (
	// lingerFor is how long a client may go on sending while it gets the answer, and
	// maxLinger how much.
	lingerFor = 500 * time.Millisecond
	maxLinger = 256 << 10
)

// Read implements net.Conn. What comes before the line that is wrong goes on.
func (c *conn) Read(p []byte) (int, error) {
	if c.bad.Load() {
		return c.refuse(p)
	}
	n, err := c.Conn.Read(p)
	good := c.scan.take(p[:n])
	if good == n {
		return n, err
	}
	if c.bad.Store(true); good == 0 {
		return c.refuse(p)
	}
	return good, nil
}

// refuse gives the error to whoever reads the head. While the request before it is under
// way net/http waits for one byte, to learn of a client that leaves: an error would end
// that request. It gets one more byte of the head, which can end no line of it.
func (c *conn) refuse(p []byte) (int, error) {
	if len(p) == 1 && !c.spared {
		c.spared, p[0] = true, 'x'
		return 1, nil
	}
	return 0, errDoubtful
}

// Close implements net.Conn. Behind a head that is wrong the rest is read for a moment:
// closed at once, with bytes unread, the connection would be reset and the client might
// lose the answer.
func (c *conn) Close() error {
	if first := c.closed.CompareAndSwap(false, true); first && c.bad.Load() && c.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerFor))
		_, _ = io.CopyN(io.Discard, c.Conn, maxLinger)
	}
	return c.Conn.Close()
}

// CloseWrite lets net/http end its side alone, so that an answer to a request that it
// did not read to the end arrives.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
