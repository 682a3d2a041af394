package forward

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
)

const (
	// Bodies of these sizes are read into memory that is used again: smaller
	// ones cost nothing, larger ones are too rare to keep memory for.
	minPooledBody = 4 << 10
	maxPooledBody = 8 << 20
	// largeBody is the size from which spares hold it, and of which Go makes
	// every object in pages of its own.
	largeBody = 32 << 10
	// bodySteps are the sizes of smaller ones between one power of two and the
	// next, so that at most an eighth of a buffer is wasted.
	bodySteps = 8
)

// bodyPools hold []byte by size class, up to largeBody.
var bodyPools [(15-12)*bodySteps + 1]sync.Pool //nolint:gochecknoglobals // pools are shared by nature

// bodyClass gives the class whose buffers hold n bytes, and their size; ok is
// false for bodies that are not in these pools.
func bodyClass(n int64) (class, size int, ok bool) {
	if n < minPooledBody || n > largeBody {
		return 0, 0, false
	}
	power := bits.Len64(uint64(n)) - 1 // 2^power <= n
	step := 1 << power / bodySteps
	k := (int(n) - 1<<power + step - 1) / step // steps above 2^power
	class = (power-12)*bodySteps + k           // k = bodySteps is the next power's first
	return class, 1<<power + k*step, true
}

// bodySize is how many bytes bodyBuffer takes for n, unless it finds a larger spare.
func bodySize(n int64) int64 {
	if _, size, ok := bodyClass(n); ok {
		return int64(size)
	}
	if n <= maxPooledBody {
		return int64(spareSize(int(n)))
	}
	return n
}

// bodyBuffer gives room for n bytes or more; pooled is nil if it is not to be
// used again, else for dropBuffer.
func (h *Handler) bodyBuffer(n int64) (buf []byte, pooled *[]byte) {
	class, size, ok := bodyClass(n)
	switch {
	case ok:
		if pooled, _ = bodyPools[class].Get().(*[]byte); pooled == nil {
			b := make([]byte, size)
			pooled = &b
		}
	case n > largeBody && n <= maxPooledBody:
		pooled = h.spares.take(int(n))
	default:
		return make([]byte, n), nil
	}
	return *pooled, pooled
}

// dropBuffer lets the next body have it, unless somebody else may still be
// reading it.
func (h *Handler) dropBuffer(pooled *[]byte, lent bool) {
	if pooled == nil {
		return
	}
	class, _, small := bodyClass(int64(len(*pooled)))
	switch {
	case small && !lent:
		bodyPools[class].Put(pooled)
	case !small && !lent:
		h.spares.give(pooled)
	case !small:
		h.spares.lose(pooled)
	}
}

// dropBody lets go of the request's bytes, which no further leg needs: an open
// stream must not hold the prompt. They are used again unless an upstream
// client may still be reading them.
func (x *exchange) dropBody() {
	x.req, x.header = nil, nil
	x.giveBack()
	x.h.dropBuffer(x.pooled, x.lent)
	x.pooled = nil
	x.letGo(x.held)
}

// readBody reads the whole request body; if it cannot it has answered.
func (x *exchange) readBody() ([]byte, bool) {
	if json := x.memo != nil && x.memo.json; !json && !isJSON(x.r.Header) {
		x.refuse(openai.NotJSON())
		return nil, false
	}
	limit := x.h.opts.MaxBody
	if x.r.ContentLength > limit {
		x.w.Header().Set("Connection", "close") // the rest is not worth reading
		x.refuse(tooLarge(limit))
		return nil, false
	}
	if n := x.r.ContentLength; n > firstRoom && !x.h.bodies.fits(n) {
		x.noRoom()
		return nil, false
	}
	var body []byte
	var err error
	if at, ok := x.r.Body.(interface{ AtHand() bool }); ok && x.r.ContentLength > 0 && at.AtHand() {
		body, err = x.readAll(x.r.Body, x.r.ContentLength)
	} else {
		body, err = x.awaitBody()
	}
	x.entry.BytesIn = int64(len(body))
	if err == nil {
		return body, true
	}
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, errNoRoom):
		x.noRoom()
	case errors.As(err, &over):
		x.refuse(tooLarge(limit))
	case x.ctx.Err() != nil:
		x.gone()
	default:
		x.w.Header().Set("Connection", "close")
		x.refuse(&openai.Error{Status: http.StatusBadRequest, Type: openai.TypeBadRequest,
			Message: "the request body could not be read: " + err.Error()})
	}
	return nil, false
}

// awaitBody reads a body that may come slowly.
func (x *exchange) awaitBody() ([]byte, error) {
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(x.now.Add(x.h.opts.BodyTimeout)) // not supported: no deadline
	in := x.r.Body
	if x.r.ContentLength <= 0 { // what is announced is within the limit
		in = http.MaxBytesReader(x.w, in, x.h.opts.MaxBody)
	}
	body, err := x.readAll(in, x.r.ContentLength)
	_ = rc.SetReadDeadline(time.Time{})
	x.now = time.Now()
	return body, err
}

const (
	// firstRoom is the size up to which a body gets all its memory before any of it
	// has come.
	firstRoom = 16 << 10
	// trustByte is how many bytes of memory one that came is good for, and up to
	// twice that for the whole: who announces much and sends little holds little.
	trustByte = 4
)

// readAll reads to the end into one buffer, of the announced length if any.
func (x *exchange) readAll(r io.Reader, length int64) ([]byte, error) {
	if length <= 0 {
		return x.readUnannounced(r)
	}
	room := min(length, firstRoom)
	buf, err := x.readFirst(r, nil, room)
	for err == nil && room < length {
		if room *= trustByte; 2*room > length {
			room = length // a little more trust, for which it is moved once less
		}
		buf, err = x.readFirst(r, buf, room)
	}
	if err != nil {
		return buf, err
	}
	// The server stops at the announced length; this read sees its EOF, and
	// any other reader's surplus.
	if m, err := r.Read(x.borrow().one[:]); m != 0 || (err != nil && err != io.EOF) {
		return buf, errors.Join(errSurplus, err)
	}
	return buf, nil
}

// readFirst gives the first room bytes of a body, of which have are there, in a
// buffer that replaces the one they are in.
func (x *exchange) readFirst(r io.Reader, have []byte, room int64) ([]byte, error) {
	before := x.held
	buf, pooled, err := x.roomFor(room)
	if err != nil {
		return have, err
	}
	buf = buf[:room]
	n := copy(buf, have)
	x.h.dropBuffer(x.pooled, false) // no leg has seen it
	x.pooled = pooled
	x.letGo(before)
	m, err := io.ReadFull(r, buf[n:])
	if err == io.EOF && n > 0 {
		err = io.ErrUnexpectedEOF
	}
	return buf[:n+m], err
}

// A body of unknown length is read into pieces, a small one first, and put
// together when its length is known: one copy, where a buffer that grows takes
// several and leaves as many sizes behind.
const (
	firstPiece = minPooledBody
	piece      = 2 * largeBody
)

func (x *exchange) readUnannounced(r io.Reader) ([]byte, error) {
	var full []*[]byte // pieces before the last
	defer func() {
		for _, p := range full {
			x.letGo(int64(len(*p)))
			x.h.dropBuffer(p, false) // no leg has seen it
		}
	}()
	last, pooled, err := x.roomFor(firstPiece)
	if err != nil {
		return nil, err
	}
	x.pooled = pooled
	for before, n := 0, 0; ; {
		m, err := r.Read(last[n:])
		n += m
		switch {
		case err == nil && n < len(last):
		case err == nil:
			full = append(full, x.pooled)
			before += n
			n = 0
			if last, x.pooled, err = x.roomFor(piece); err != nil {
				return nil, err
			}
		case len(full) == 0 || err != io.EOF:
			return last[:n], ended(err)
		default:
			full = append(full, x.pooled)
			var body []byte
			if body, x.pooled, err = x.roomFor(int64(before + n)); err != nil {
				return nil, err
			}
			rest := body[:before+n]
			for _, p := range full {
				rest = rest[copy(rest, *p):]
			}
			return body[:before+n], nil
		}
	}
}

// ended takes the end for no error. Only io.EOF itself is the end; what wraps it
// is a body cut short.
func ended(err error) error {
	if err == io.EOF { //nolint:errorlint // see above
		return nil
	}
	return err
}

var errSurplus = errors.New("more bytes than announced")
