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
	// maxJoinedBody is the size up to which a body is copied behind the head: a
	// plain write of a few hundred bytes costs less than a vectored one.
	maxJoinedBody = 4 << 10
	// minWatchedBody is the size from which a body may not fit the socket's buffer.
	// While such a body is sent, send watches for an answer that comes early.
	minWatchedBody = 16 << 10
	// minPeekWait and maxPeekWait bound how long a blocked send waits before it
	// looks for such an answer.
	minPeekWait = 10 * time.Millisecond
	maxPeekWait = 160 * time.Millisecond
)

// conn is one connection to an engine. It has no goroutine: it belongs to the
// exchange that uses it, then to the idle list.
type conn struct {
	tcp    *sock.Conn
	reader io.Reader // tcp, except in tests of the parser
	raw    syscall.RawConn
	abort  func() // closes tcp; any goroutine may call it

	host       *host
	generation uint64        // of host when this was dialled
	idleSince  time.Duration // by Pool.now; guarded by host.mu
	reused     bool

	buf      http1.Buffer
	heads    http1.HeadCache
	answered bool     // a byte of this exchange's answer came
	vector   [][]byte // the request
	rest     [][]byte // the part of vector that is not sent yet

	peekFunc func(fd uintptr) bool // for raw.Read, made once: a new one would be allocated
	peeked   peekResult
	sendFunc func(fd uintptr) bool // sendStep, made once as well
	sending  sendState
}

// peekResult is what a read of the connection would find.
type peekResult uint8

const (
	peekNothing peekResult = iota // also where the system cannot tell
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
	c.peekFunc = func(fd uintptr) bool {
		c.peeked = peekFD(fd)
		return true // never wait
	}
	return c, nil
}

// peek looks at the socket without waiting and without taking anything.
func (c *conn) peek() peekResult {
	c.peeked = peekEnd
	if err := c.raw.Read(c.peekFunc); err != nil {
		return peekEnd
	}
	return c.peeked
}

// setRequest sets what send is to send. The body's bytes are shared with other legs
// and are only read. The slices over them are copied, since sending shortens them.
func (c *conn) setRequest(head []byte, body [][]byte) {
	c.vector = append(append(c.vector[:0], head), body...)
	c.rest = c.vector
}

// send writes what is left of the request. With watchEarlyReply it stops when an
// answer comes before the end of the request; early tells so.
func (c *conn) send(watchEarlyReply bool) (early bool, err error) {
	if !watchEarlyReply {
		_, err = c.tcp.WriteAll(c.rest)
		c.releaseRequest()
		return false, err
	}
	for wait := minPeekWait; ; wait = min(2*wait, maxPeekWait) {
		// No other goroutine waits for the answer meanwhile, so this one looks for
		// it between short writes. An ended context closes the connection, which
		// no deadline set here can undo.
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

// errNotIdle means that a pooled connection had bytes to read, or its end, before
// the request was sent.
var errNotIdle = errors.New("not idle any more")

// exchange sends the request and reads the answer's head, interim ones skipped.
// sentAll reports whether all of the request was sent.
func (c *conn) exchange(watchEarlyReply bool, h *head) (sentAll bool, err error) {
	c.answered = false
	more, early := true, false
	var sendErr error
	if c.raw != nil {
		more, sendErr, err = c.sendAndRead()
		if err != nil || sendErr == errNotIdle { //nolint:errorlint // our own, unwrapped
			return false, cmp.Or(err, sendErr)
		}
	}
	if more && sendErr == nil {
		early, sendErr = c.send(watchEarlyReply)
	}
	for range maxInterim + 1 {
		// A peer that closed the connection may have answered before that. A read
		// finds out, and cannot block on a connection that is gone.
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
		case early: // after an interim answer the rest of the request is sent
			early, sendErr = c.send(watchEarlyReply)
		}
	}
	return false, errInterim
}

// fill reads once into the buffer. At the end of the connection it gives
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

// close ends the connection. A peer that is still sending gets a reset.
func (c *conn) close() {
	c.buf.Release()
	c.abort()
}

// read returns buffered bytes, or reads from the connection into p directly.
func (c *conn) read(p []byte) (int, error) {
	if b := c.buf.Bytes(); len(b) > 0 {
		n := copy(p, b)
		c.buf.Take(n)
		return n, nil
	}
	return c.reader.Read(p)
}
