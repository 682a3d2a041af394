package upstream

import (
	"context"
	"errors"
	"io"

	"github.com/pdmesh/pdmesh/internal/transport/http1"
)

// minDirectRead is the size in bytes from which a read of a chunked body goes directly
// into the caller's slice. A smaller slice would split the framing over many reads.
const minDirectRead = 512

var errBodyClosed = errors.New("the body was closed before")

type framing uint8

const (
	byLength framing = iota
	byChunks
	byClose
)

// answer is a Response and its Body. It holds the connection until the body ends
// or fails.
type answer struct {
	Response

	ctx     context.Context //nolint:containedctx // the exchange's own, to name the cause of an end
	unwatch func() bool     // detaches the connection from ctx; see context.AfterFunc
	pool    *Pool
	conn    *conn // nil after release
	address string

	framing   framing
	reusable  bool  // the connection may be reused after a clean end
	remaining int64 // byLength: bytes not yet read
	chunks    http1.ChunkDecoder
	ended     error // result of every further Read; nil before the end
}

// start sets the framing of the body (RFC 9112, 6.3). An empty body releases the
// connection immediately.
func (a *answer) start(method string, h *head, sentAll bool) error {
	a.reusable = sentAll && h.persistent()
	a.Status, a.Header, a.Length = h.status, h.Header, h.Length
	a.Body = a
	switch {
	case method == "HEAD" || h.status == 204 || h.status == 304:
		a.Length = 0
	case h.Chunked:
		a.framing = byChunks
	case h.Length >= 0:
		a.remaining = h.Length
	case h.persistent():
		return errNoFraming
	default:
		a.framing, a.reusable = byClose, false
	}
	if a.framing == byLength && a.remaining == 0 {
		a.finish()
	}
	return nil
}

// Read returns the available bytes. The last ones are returned together with io.EOF.
func (a *answer) Read(p []byte) (int, error) {
	if a.ended != nil {
		return 0, a.ended
	}
	if len(p) == 0 {
		return 0, nil
	}
	switch a.framing {
	case byChunks:
		return a.readChunks(p)
	case byLength:
		if int64(len(p)) > a.remaining {
			p = p[:a.remaining]
		}
	case byClose:
	}
	n, err := a.conn.read(p)
	if a.framing == byLength {
		a.remaining -= int64(n)
		if a.remaining == 0 {
			a.finish()
			return n, a.ended
		}
	}
	if err == nil {
		return n, nil
	}
	if a.framing == byClose && err == io.EOF { //nolint:errorlint // Read's contract: io.EOF itself
		a.finish()
	} else {
		a.fail(err)
	}
	return n, a.ended
}

// readChunks reads a chunked body. Where possible, it decodes in place in the caller's slice.
func (a *answer) readChunks(p []byte) (int, error) {
	for {
		n, err := a.decodeOnce(p)
		switch {
		case err != nil:
			a.fail(err)
		case a.chunks.Done():
			a.finish()
		case n == 0: // only framing was read
			continue
		}
		return n, a.ended
	}
}

func (a *answer) decodeOnce(p []byte) (int, error) {
	c := a.conn
	if len(c.buf.Bytes()) == 0 && len(p) < minDirectRead {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if b := c.buf.Bytes(); len(b) > 0 {
		n, used, err := a.chunks.Decode(p, b)
		c.buf.Take(used)
		return n, err
	}
	m, err := c.reader.Read(p)
	n, used, bad := a.chunks.Decode(p, p[:m])
	if bad != nil {
		return n, bad
	}
	if used < m {
		a.reusable = false // there are bytes after the end of the body
	}
	if a.chunks.Done() {
		return n, nil
	}
	return n, err
}

// finish ends a complete body.
func (a *answer) finish() {
	a.ended = io.EOF
	a.release(a.reusable && len(a.conn.buf.Bytes()) == 0)
}

// fail ends a body that was cut off.
func (a *answer) fail(err error) {
	if err == io.EOF { //nolint:errorlint // Read's contract: io.EOF itself
		err = io.ErrUnexpectedEOF
	}
	a.ended = &Error{Stage: StageBody, Address: a.address, Err: causeOf(a.ctx, err), MaybeTaken: true}
	a.release(false)
}

// Close releases the connection. Before the end of the body it closes the connection,
// which makes the engine abort the request.
func (a *answer) Close() error {
	if a.ended == nil {
		a.ended = &Error{Stage: StageBody, Address: a.address, Err: errBodyClosed, MaybeTaken: true}
		a.release(false)
	}
	return nil
}

// release returns the connection to the pool. If ctx has ended, its AfterFunc may
// still close the connection later, so the connection is not reused
// (TestEndedContext_ClosesConnection).
func (a *answer) release(reusable bool) {
	c := a.conn
	a.conn = nil
	if !a.unwatch() {
		reusable = false
	}
	a.pool.release(c, reusable)
}
