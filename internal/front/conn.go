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
	"github.com/pdmesh/pdmesh/internal/sock"
)

// The states of a connection. Shutdown and makeRoom close only new and idle ones.
const (
	stateNew    = iota // no byte has come yet
	stateIdle          // between two requests
	stateBusy          // in a request
	stateClosed        // closed by closeIdle or makeRoom
)

// conn is one client's connection. It belongs to one goroutine; other goroutines
// use only ctx, clientGone, state, opened and abort.
type conn struct {
	ctx        context.Context    //nolint:containedctx // of all its requests: their client is there as long as the connection is
	clientGone context.CancelFunc // ends ctx

	server *Server
	tcp    *sock.Conn
	raw    syscall.RawConn
	token  uint64 // the key in watcher.conns
	state  atomic.Int32
	opened time.Time

	buf   http1.Buffer // from a request's first byte until its body is read
	heads http1.HeadCache

	recvFunc      func(fd uintptr) bool // for raw.Read, made once
	recvErr       error
	readDeadline  time.Time // the deadline that is set on tcp, zero for none
	writeDeadline time.Time
	request       *http.Request
	body          body
	response      response
}

func newConn(s *Server, tcp *net.TCPConn) (*conn, error) {
	wrapped, err := sock.New(tcp)
	if err != nil {
		return nil, err
	}
	c := &conn{server: s, tcp: wrapped, raw: wrapped.Raw(), opened: time.Now()}
	c.ctx, c.clientGone = context.WithCancel(context.Background())
	c.recvFunc = c.recvAvailable
	c.request = (&http.Request{
		Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: tcp.RemoteAddr().String(),
	}).WithContext(c.ctx)
	c.body.c, c.response.c = c, c
	c.response.header = http.Header{}
	return c, nil
}

// abort ends the connection and its requests' context, from any goroutine.
func (c *conn) abort() {
	c.clientGone()
	_ = c.tcp.Close()
}

// serve answers requests until the connection ends or is handed over.
func (c *conn) serve() {
	defer c.server.remove(c)
	if err := c.server.watch.add(c); err != nil {
		c.server.handover.give(c.tcp.TCPConn, nil)
		return
	}
	for c.awaitRequest() {
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
	c.abort() // ctx must end too: functions may wait for it
}

// handOver hands the connection, with the bytes read, to the standard library's server.
func (c *conn) handOver() {
	c.server.watch.forget(c)
	if !c.readDeadline.IsZero() || !c.writeDeadline.IsZero() {
		_ = c.tcp.SetDeadline(time.Time{})
	}
	read := append([]byte(nil), c.buf.Bytes()...)
	c.buf.Release()
	c.server.handover.give(c.tcp.TCPConn, read)
}

// awaitRequest waits for the first bytes of a request; false means that none comes.
func (c *conn) awaitRequest() bool {
	if c.ctx.Err() != nil { // the client has gone, even if it sent requests ahead
		return false
	}
	if len(c.buf.Bytes()) > 0 { // a request sent ahead
		c.state.Store(stateBusy)
		return !c.server.stopping.Load()
	}
	c.buf.Release()
	if c.state.Load() == stateNew {
		c.limitRead(c.server.firstByteTimeout())
	} else {
		c.limitRead(c.server.opts.IdleTimeout)
		c.state.Store(stateIdle)
		if c.server.stopping.Load() {
			return false
		}
	}
	c.recvErr = nil
	err := c.raw.Read(c.recvFunc)
	if err != nil || c.recvErr != nil {
		return false
	}
	// closeIdle or makeRoom may have closed the connection meanwhile, as a client
	// must expect of an idle one (RFC 9112, 9.5).
	return c.state.CompareAndSwap(stateIdle, stateBusy) || c.state.CompareAndSwap(stateNew, stateBusy)
}

// recvAvailable reads the bytes that are there, for raw.Read. false makes the poller
// wait for some; meanwhile the connection holds no buffer.
func (c *conn) recvAvailable(fd uintptr) bool {
	n, err := sock.Recv(fd, c.buf.Free())
	c.buf.Add(n)
	switch {
	case n > 0:
	case err == syscall.EAGAIN: //nolint:errorlint // a system call's, unwrapped
		return false
	case err == nil:
		c.recvErr = io.EOF
	default:
		c.recvErr = err
	}
	return true
}

// skipLineEnds drops up to two empty lines before a request. Some clients send a line
// end after a body, which its length does not count (RFC 9112, 2.2).
func (c *conn) skipLineEnds() {
	for range 4 {
		if b := c.buf.Bytes(); len(b) == 0 || b[0] != '\r' && b[0] != '\n' {
			return
		}
		c.buf.Take(1)
	}
}

// limitRead makes reads end after d, or up to a quarter of d earlier. A deadline that
// is near enough stays, since setting one costs as much as a read.
func (c *conn) limitRead(d time.Duration) {
	if left := time.Until(c.readDeadline); left < d-d/4 || left > d {
		c.readDeadline = time.Now().Add(d)
		_ = c.tcp.SetReadDeadline(c.readDeadline)
	}
}

// answer runs the handler; false means that the connection must end.
func (c *conn) answer(to *route) bool {
	c.response.begin()
	// A client that has left before its handler answered gets no empty 200
	// (TestNoAnswerIsMadeUp).
	if !c.callHandler(to) || c.response.status == 0 && c.ctx.Err() != nil {
		c.response.dropBuffer()
		return false
	}
	keepAlive := c.response.end()
	if !keepAlive {
		c.linger()
		return false
	}
	return c.body.remaining == 0 || c.discardBody()
}

// run calls the handler; false means that the connection must be broken.
func (c *conn) callHandler(to *route) (whole bool) {
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
	// maxDiscard bounds the unread body that is read to keep the connection.
	maxDiscard = 256 << 10
	// lingerFor bounds the time for which the rest of a body is read after the answer.
	lingerFor = 500 * time.Millisecond
)

// discardBody reads the rest of the body, which the handler has not read.
func (c *conn) discardBody() bool {
	if c.body.remaining > maxDiscard {
		c.linger()
		return false
	}
	_ = c.setReadDeadline(time.Now().Add(lingerFor))
	_, err := io.Copy(io.Discard, &c.body)
	return err == nil
}

// linger ends our side and reads on for a moment. If the connection were closed at
// once with bytes unread, it would be reset, and the client might lose the answer
// (RFC 9112, 9.6).
func (c *conn) linger() {
	if c.body.remaining == 0 || c.tcp.CloseWrite() != nil {
		return
	}
	_ = c.setReadDeadline(time.Now().Add(lingerFor))
	_, _ = io.Copy(io.Discard, io.LimitReader(&c.body, maxDiscard))
}

// setReadDeadline sets the deadline of the reads of a body.
func (c *conn) setReadDeadline(t time.Time) error {
	c.readDeadline = t
	return c.tcp.SetReadDeadline(t)
}

// body is a request's body of known length.
type body struct {
	c         *conn
	remaining int64
	// deadline is for the whole body. It is set on the connection only when a read
	// has to wait.
	deadline time.Time
}

// Read implements io.Reader. The last bytes do not come with io.EOF.
func (b *body) Read(p []byte) (int, error) {
	if b.remaining == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > b.remaining {
		p = p[:b.remaining]
	}
	c := b.c
	if have := c.buf.Bytes(); len(have) > 0 {
		n := copy(p, have)
		b.remaining -= int64(n)
		c.buf.Take(n)
		return n, nil
	}
	if !b.deadline.IsZero() && b.deadline != c.readDeadline {
		if err := c.setReadDeadline(b.deadline); err != nil {
			return 0, err
		}
	}
	n, err := c.tcp.Read(p)
	b.remaining -= int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	if err != nil {
		// A client that closes in the middle of its body has left, as in net/http.
		c.clientGone()
		if err == io.EOF { //nolint:errorlint // the connection's own, unwrapped
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// Close implements io.Closer; the connection outlives the body.
func (*body) Close() error { return nil }
