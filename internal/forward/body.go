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
	// Bodies of these sizes are read into pooled memory: smaller ones cost
	// nothing, larger ones are too rare to keep memory for.
	minPooledBody = 4 << 10
	maxPooledBody = 8 << 20
	// bodySteps are the sizes between one power of two and the next, so that at
	// most an eighth of a buffer is wasted.
	bodySteps = 8
)

// bodyPools hold []byte by size class.
var bodyPools [(23 - 12 + 1) * bodySteps]sync.Pool //nolint:gochecknoglobals // pools are shared by nature

// bodyClass gives the class whose buffers hold n bytes, and their size; ok is
// false for bodies that are not pooled.
func bodyClass(n int64) (class, size int, ok bool) {
	if n < minPooledBody || n > maxPooledBody {
		return 0, 0, false
	}
	power := bits.Len64(uint64(n)) - 1 // 2^power <= n
	step := 1 << power / bodySteps
	k := (int(n) - 1<<power + step - 1) / step // steps above 2^power
	class = (power-12)*bodySteps + k           // k = bodySteps is the next power's first
	return class, 1<<power + k*step, true
}

// bodyBuffer gives room for n bytes, pooled if that pays.
func bodyBuffer(n int64) (buf []byte, pooled *[]byte) {
	class, size, ok := bodyClass(n)
	if !ok {
		return make([]byte, n), nil
	}
	pooled, _ = bodyPools[class].Get().(*[]byte)
	if pooled == nil {
		b := make([]byte, size)
		pooled = &b
	}
	return (*pooled)[:n], pooled
}

// dropBody lets go of the request's bytes, which no further leg needs: an open
// stream must not hold the prompt. They are used again unless an upstream
// client may still be reading them.
func (x *exchange) dropBody() {
	x.req, x.header = nil, nil
	if x.pooled != nil && !x.lent {
		class, _, _ := bodyClass(int64(len(*x.pooled)))
		bodyPools[class].Put(x.pooled)
	}
	x.pooled = nil
}

// readBody reads the whole request body; if it cannot it has answered.
func (x *exchange) readBody() ([]byte, bool) {
	if !isMedia(x.r.Header.Get("Content-Type"), "application/json") {
		x.refuse(&openai.Error{Status: http.StatusUnsupportedMediaType, Type: openai.TypeMediaType,
			Message: "Unsupported Media Type: Only 'application/json' is allowed"})
		return nil, false
	}
	limit := x.h.opts.MaxBody
	if x.r.ContentLength > limit {
		x.w.Header().Set("Connection", "close") // the rest is not worth reading
		x.refuse(tooLarge(limit))
		return nil, false
	}
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(time.Now().Add(x.h.opts.BodyTimeout)) // not supported: no deadline
	in := x.r.Body
	if x.r.ContentLength <= 0 { // what is announced is within the limit
		in = http.MaxBytesReader(x.w, in, limit)
	}
	body, err := x.readAll(in, x.r.ContentLength)
	_ = rc.SetReadDeadline(time.Time{})
	x.entry.BytesIn = int64(len(body))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		x.refuse(tooLarge(limit))
	case err != nil && x.ctx.Err() != nil:
		x.gone()
	case err != nil:
		x.w.Header().Set("Connection", "close")
		x.refuse(&openai.Error{Status: http.StatusBadRequest, Type: openai.TypeBadRequest,
			Message: "the request body could not be read: " + err.Error()})
	default:
		return body, true
	}
	return nil, false
}

// readAll reads to the end into one buffer of the announced length, if any.
func (x *exchange) readAll(r io.Reader, length int64) ([]byte, error) {
	if length <= 0 {
		return io.ReadAll(r)
	}
	var buf []byte
	buf, x.pooled = bodyBuffer(length)
	n, err := io.ReadFull(r, buf)
	if err != nil {
		return buf[:n], err
	}
	// The server stops at the announced length; this read sees its EOF, and
	// any other reader's surplus.
	var one [1]byte
	if m, err := r.Read(one[:]); m != 0 || (err != nil && err != io.EOF) {
		return buf, errors.Join(errSurplus, err)
	}
	return buf, nil
}

var errSurplus = errors.New("more bytes than announced")
