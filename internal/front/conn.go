package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/http1"
	"github.com/pdmesh/pdmesh/internal/lifetime"
	"github.com/pdmesh/pdmesh/internal/sock"
)

// errClientLeft is the end of a connection's context. To everybody behind it is
// what net/http makes of a client that left.
var errClientLeft = context.Canceled

// The states of a connection, for the stop.
const (
	stateNew    = iota // nothing has come yet
	stateIdle          // between two requests
	stateBusy          // in a request
	stateClosed        // closed by the stop
)

// conn is one client's connection, and the context of its requests: their
// client is there as long as the connection is. All but that context and cut
// belongs to its one goroutine.
type conn struct {
	lifetime.Context

	server *Server
	tcp    *sock.Conn
	raw    syscall.RawConn
	token  uint64 // of watcher
	state  atomic.Int32
	born   time.Time

	buf   http1.Buffer // from a request's first byte until its body is read
	heads http1.HeadCache

	take     func(fd uintptr) bool // for raw.Read, made once
	takeErr  error
	readBy   time.Time // the deadline that is set, zero for none
	writeBy  time.Time
	request  *http.Request
	body     body
	response response
}

func newConn(s *Server, tcp *net.TCPConn) (*conn, error) {
	quick, err := sock.New(tcp)
	if err != nil {
		return nil, err
	}
	c := &conn{server: s, tcp: quick, raw: quick.Raw(), born: time.Now()}
	c.take = c.readWhatIsThere
	c.request = (&http.Request{
		Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: tcp.RemoteAddr().String(),
	}).WithContext(c)
	c.body.c, c.response.c = c, c
	c.response.header = http.Header{}
	return c, nil
}

// cut ends the connection under its goroutine's hands.
func (c *conn) cut() {
	c.Cancel(errClientLeft)
	_ = c.tcp.Close()
}

// serve answers requests until the connection ends or is another server's.
func (c *conn) serve() {
	defer c.server.remove(c)
	if err := c.server.watch.add(c); err != nil {
		c.server.handed.give(c.tcp.TCPConn, nil)
		return
	}
	for c.next() {
		if c.skipLineEnds(); len(c.buf.Bytes()) == 0 {
			continue
		}
		switch route, err := c.parse(); {
		case err != nil:
			c.handOver()
			return
		case !c.answer(route):
			c.close()
			return
		}
	}
	c.close()
}

func (c *conn) close() {
	c.server.watch.remove(c)
	c.buf.Release()
	c.cut() // nobody may wait for this client any more
}

// handOver gives the connection to the standard library's server.
func (c *conn) handOver() {
	c.server.watch.forget(c)
	if !c.readBy.IsZero() || !c.writeBy.IsZero() {
		_ = c.tcp.SetDeadline(time.Time{})
	}
	read := append([]byte(nil), c.buf.Bytes()...)
	c.buf.Release()
	c.server.handed.give(c.tcp.TCPConn, read)
}

// next waits for the first bytes of a request; false means that there is none.
func (c *conn) next() bool {
	if c.Err() != nil { // whatever it sent ahead
		return false
	}
	if len(c.buf.Bytes()) > 0 { // sent ahead
		c.state.Store(stateBusy)
		return !c.server.stopping.Load()
	}
	c.buf.Release()
	if c.state.Load() == stateNew {
		c.readLimit(c.server.firstTimeout())
	} else {
		c.readLimit(c.server.opts.IdleTimeout)
		c.state.Store(stateIdle)
		if c.server.stopping.Load() {
			return false
		}
	}
	c.takeErr = nil
	err := c.raw.Read(c.take)
	if err != nil || c.takeErr != nil {
		return false
	}
	// The stop may have come meanwhile: then the connection is closed, as a
	// client must expect of an idle one.
	return c.state.CompareAndSwap(stateIdle, stateBusy) || c.state.CompareAndSwap(stateNew, stateBusy)
}

// readWhatIsThere fills the buffer. While it waits, it holds none.
func (c *conn) readWhatIsThere(fd uintptr) bool {
	n, err := sock.Recv(fd, c.buf.Room())
	c.buf.Add(n)
	switch {
	case n > 0:
	case err == syscall.EAGAIN: //nolint:errorlint // a system call's, unwrapped
		return false
	case err == nil:
		c.takeErr = io.EOF
	default:
		c.takeErr = err
	}
	return true
}

// skipLineEnds drops up to two empty lines in front of a request, as some clients end
// a body with a line end that its length does not count (RFC 9112, 2.2).
func (c *conn) skipLineEnds() {
	for range 4 {
		if b := c.buf.Bytes(); len(b) == 0 || b[0] != '\r' && b[0] != '\n' {
			return
		}
		c.buf.Take(1)
	}
}

// readLimit makes sure that reads end after d, or a quarter earlier: to move a
// deadline costs as much as a read.
func (c *conn) readLimit(d time.Duration) {
	if left := time.Until(c.readBy); left < d-d/4 || left > d {
		c.readBy = time.Now().Add(d)
		_ = c.tcp.SetReadDeadline(c.readBy)
	}
}

// answer runs the handler; false means that the connection must end.
func (c *conn) answer(to *route) bool {
	c.response.begin()
	// Whoever has left, or was cut, and got nothing gets nothing made up either.
	if !c.run(to) || c.response.status == 0 && c.Err() != nil {
		c.response.forget()
		return false
	}
	again := c.response.end()
	if !again {
		c.linger()
		return false
	}
	return c.body.left == 0 || c.discard()
}

// run calls the handler; false means that the connection must be broken.
func (c *conn) run(to *route) (whole bool) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			c.server.opts.Log.WithField("panic", fmt.Sprint(p)).Errorf("handler failed\n%s", debug.Stack())
		}
	}()
	to.handler(&c.response, c.request)
	return true
}

const (
	// maxDiscard is how much of an unread body is read to keep the connection.
	maxDiscard = 256 << 10
	// lingerFor is how long a client may go on sending a body that is not read
	// while it gets the answer.
	lingerFor = 500 * time.Millisecond
)

// discard reads what the handler left of the body.
func (c *conn) discard() bool {
	if c.body.left > maxDiscard {
		c.linger()
		return false
	}
	_ = c.setReadDeadline(time.Now().Add(lingerFor))
	_, err := io.Copy(io.Discard, &c.body)
	return err == nil
}

// linger ends our side and reads on for a moment: closed at once, with bytes
// unread, the connection would be reset and the client might lose the answer.
func (c *conn) linger() {
	if c.body.left == 0 || c.tcp.CloseWrite() != nil {
		return
	}
	_ = c.setReadDeadline(time.Now().Add(lingerFor))
	_, _ = io.Copy(io.Discard, io.LimitReader(&c.body, maxDiscard))
}

// setReadDeadline applies to the body that is being read.
func (c *conn) setReadDeadline(t time.Time) error {
	c.readBy = t
	return c.tcp.SetReadDeadline(t)
}

// body is a request's body of known length.
type body struct {
	c    *conn
	left int64
	// by is the deadline for the whole of it, which is set when there is
	// something to wait for.
	by time.Time
}

// Read implements io.Reader. The last bytes do not come with io.EOF.
func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	c := b.c
	if have := c.buf.Bytes(); len(have) > 0 {
		n := copy(p, have)
		b.left -= int64(n)
		c.buf.Take(n)
		return n, nil
	}
	if !b.by.IsZero() && b.by != c.readBy {
		if err := c.setReadDeadline(b.by); err != nil {
			return 0, err
		}
	}
	n, err := c.tcp.Read(p)
	b.left -= int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	if err != nil {
		// As net/http has it: who closes in the middle has left.
		c.Cancel(errClientLeft)
		if err == io.EOF { //nolint:errorlint // the connection's own, unwrapped
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// Close implements io.Closer; the connection outlives the body.
func (*body) Close() error { return nil }
