package upstream

import (
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/transport/http1"
	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

const (
	// maxJoinedBody is the size in bytes up to which a body is appended to the head:
	// for small sizes a plain write is faster than a vectored one.
	maxJoinedBody = 4 << 10
	// minPeekWait and maxPeekWait bound the time that a blocked send waits before it
	// checks for an early response.
	minPeekWait = 10 * time.Millisecond
	maxPeekWait = 160 * time.Millisecond
)

// conn is one connection to an engine. It has no goroutine of its own. It is owned
// by the exchange that uses it, then by the idle list.
type conn struct {
	tcp    *sock.Conn
	reader io.Reader // tcp, except in tests of the parser
	raw    syscall.RawConn
	abort  func() // closes tcp; any goroutine may call it

	host       *host
	generation uint64        // generation of host when the connection was dialled
	idleSince  time.Duration // by Pool.now; guarded by host.mu
	reused     bool

	buf      http1.Buffer
	heads    http1.HeadCache
	answered bool     // a byte of this exchange's response was received
	vector   [][]byte // the request
	rest     [][]byte // the part of vector that is not yet sent

	sendFunc func(fd uintptr) bool // sendStep; created once to avoid an allocation per call
	sending  sendState
}

// peekResult is the result that a read of the connection would have.
type peekResult uint8

const (
	peekNothing peekResult = iota
	peekData
	peekEnd // the peer's close, or an error
)

func newConn(tcp *net.TCPConn) (*conn, error) {
	wrapped, err := sock.New(tcp)
	if err != nil {
		return nil, err
	}
	c := &conn{tcp: wrapped, reader: wrapped, raw: wrapped.Raw()}
	c.abort = func() { _ = tcp.Close() }
	c.sendFunc = c.sendStep
	return c, nil
}

// peek returns the result that a read of the socket would have. It does not wait or consume data.
func (c *conn) peek() peekResult {
	found := peekEnd
	_ = c.raw.Read(func(fd uintptr) bool { // is not called if the connection is closed
		found = peekFD(fd)
		return true // do not wait
	})
	return found
}

// peekFD returns the result that a read of this non-blocking socket would have.
func peekFD(fd uintptr) peekResult {
	var b [1]byte
	n, err := sock.Peek(fd, b[:])
	switch {
	case err == syscall.EAGAIN: //nolint:errorlint // a system call's, unwrapped
		return peekNothing
	case err != nil || n == 0:
		return peekEnd
	default:
		return peekData
	}
}

// setRequest sets the request for send. The bytes of the body are shared with other legs
// and are not modified. The slices over them are copied, since sending shortens them.
func (c *conn) setRequest(head []byte, body [][]byte) {
	c.vector = append(append(c.vector[:0], head), body...)
	c.rest = c.vector
}

// send writes the rest of a request that exceeds the socket's buffer. It stops if a response
// arrives before the end of the request; early reports whether one did.
func (c *conn) send() (early bool, err error) {
	for wait := minPeekWait; ; wait = min(2*wait, maxPeekWait) {
		// No other goroutine waits for the response meanwhile, so this one checks for
		// it between short writes. An ended context closes the connection, which a
		// deadline set here cannot undo.
		if err = c.tcp.SetWriteDeadline(time.Now().Add(wait)); err != nil {
			break
		}
		c.rest, err = c.tcp.WriteAll(c.rest)
		if err == nil {
			err = c.tcp.SetWriteDeadline(time.Time{})
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		switch c.peek() {
		case peekData:
			return true, nil
		case peekEnd:
			c.releaseRequest()
			return false, syscall.EPIPE
		case peekNothing:
		}
	}
	c.releaseRequest()
	return false, err
}

// releaseRequest drops the references to the request's bytes.
func (c *conn) releaseRequest() {
	clear(c.vector)
	c.vector, c.rest = c.vector[:0], nil
}

// errNotIdle means that a pooled connection was readable, or closed by the peer,
// before the request was sent.
var errNotIdle = errors.New("not idle any more")

// exchange sends the request and reads the head of the response, skipping interim
// responses. sentAll reports whether the whole request was sent.
func (c *conn) exchange(h *head) (sentAll bool, err error) {
	c.answered = false
	more, sendErr, err := c.sendAndRead()
	if err != nil || sendErr == errNotIdle { //nolint:errorlint // our own, unwrapped
		return false, cmp.Or(err, sendErr)
	}
	early := false
	if more {
		early, sendErr = c.send()
	}
	for range maxInterim + 1 {
		// A peer that closed the connection may have responded first. A read returns
		// that response, and cannot block on a closed connection.
		if sendErr != nil && !errors.Is(sendErr, syscall.EPIPE) && !errors.Is(sendErr, syscall.ECONNRESET) {
			return false, sendErr
		}
		if err = c.readHead(h); err != nil {
			if sendErr != nil && !c.answered {
				err = sendErr
			}
			return false, err
		}
		switch {
		case h.status == http.StatusSwitchingProtocols:
			return false, errSwitched
		case h.status >= http.StatusOK:
			c.releaseRequest()
			return !early && sendErr == nil, nil
		case early && len(c.buf.Bytes()) == 0: // after an interim response the rest of the request is sent
			early, sendErr = c.send()
		}
	}
	return false, errInterim
}

// fill reads once into the buffer. At the end of the connection it returns
// io.ErrUnexpectedEOF.
func (c *conn) fill() error {
	n, err := c.reader.Read(c.buf.Free())
	c.buf.Add(n)
	if n > 0 {
		c.answered = true
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// close closes the connection. A peer that is still sending receives a reset.
func (c *conn) close() {
	c.buf.Release()
	c.abort()
}

// read returns buffered bytes, or reads from the connection directly into p.
func (c *conn) read(p []byte) (int, error) {
	if b := c.buf.Bytes(); len(b) > 0 {
		n := copy(p, b)
		c.buf.Take(n)
		return n, nil
	}
	return c.reader.Read(p)
}
