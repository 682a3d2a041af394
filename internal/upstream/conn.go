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

	"github.com/pdmesh/pdmesh/internal/http1"
	"github.com/pdmesh/pdmesh/internal/sock"
)

const (
	// joinedBody is the size up to which a body is copied behind the head: one
	// plain write of a few hundred bytes beats a vectored one.
	maxJoinedBody = 4 << 10
	// watchedBody is the size from which a request may not fit the socket's
	// buffer, so that sending it must watch for an answer that comes early.
	minWatchedBody = 16 << 10
	// earlyLook and maxEarlyLook bound how long a blocked send goes on before
	// it looks for such an answer.
	minPeekWait = 10 * time.Millisecond
	maxPeekWait = 160 * time.Millisecond
)

// conn is one connection to an engine. It has no goroutine: it belongs to the
// exchange that uses it, then to the idle list.
type conn struct {
	tcp    *sock.Conn
	reader io.Reader // tcp, but for tests of the parser
	raw    syscall.RawConn
	abort  func() // closes tcp; the one thing another goroutine may do

	host       *host
	generation uint64        // of host when this was dialled
	idleSince  time.Duration // idle since, by the pool's clock; guarded by host.mu
	reused     bool

	buf      http1.Buffer
	heads    http1.HeadCache
	answered bool // a byte of this exchange's answer came
	vector   [][]byte
	rest     [][]byte // of vector, what is not sent yet

	peekFunc func(fd uintptr) bool // for raw.Read, made once
	peeked   peekResult
	sendFunc func(fd uintptr) bool // the same, for sendAndRead
	sending  sendState
}

// peeked is what there is to read on a connection without reading it.
type peekResult uint8

const (
	peekNothing peekResult = iota // or nobody can tell
	peekData
	peekEnd // or an error
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

// load sets what send is to send. The body's bytes are shared with other legs:
// they are only read; the slices over them are copied, since sending cuts them.
func (c *conn) setRequest(head []byte, body [][]byte) {
	c.vector = append(append(c.vector[:0], head), body...)
	c.rest = c.vector
}

// send writes what is left of the request. early tells that an answer is there
// already and the rest was held back; only with watchEarly it is looked for.
func (c *conn) send(watchEarlyReply bool) (early bool, err error) {
	if !watchEarlyReply {
		_, err = c.tcp.WriteAll(c.rest)
		c.releaseRequest()
		return false, err
	}
	for wait := minPeekWait; ; wait = min(2*wait, maxPeekWait) {
		// No goroutine may wait for the answer meanwhile, so the wait for room
		// is cut into pieces. An ended context closes the connection, which no
		// deadline set here can undo.
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

// unload lets go of the request's bytes.
func (c *conn) releaseRequest() {
	clear(c.vector)
	c.vector, c.rest = c.vector[:0], nil
}

// errNotIdle means that a pooled connection has something to read, or its end,
// before anything was sent.
var errNotIdle = errors.New("not idle any more")

// exchange sends the loaded request and reads the answer's head. whole tells
// that all of the request went out.
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
		// A peer that closed on us may have said why before that: reading
		// tells, and cannot block on a connection that is gone.
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
		case early: // an interim answer: the request goes on
			early, sendErr = c.send(watchEarlyReply)
		}
	}
	return false, errInterim
}

// fill reads once into the buffer. The end of the connection is io.ErrUnexpectedEOF.
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

// close ends the connection. The peer sees a reset if it was still sending.
func (c *conn) close() {
	c.buf.Release()
	c.abort()
}

// read takes buffered bytes, or reads past the buffer.
func (c *conn) read(p []byte) (int, error) {
	if b := c.buf.Bytes(); len(b) > 0 {
		n := copy(p, b)
		c.buf.Take(n)
		return n, nil
	}
	return c.reader.Read(p)
}
