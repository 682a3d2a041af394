package scratch

import (
	"errors"
	"io"
	"math/bits"
	"sync"
)

const (
	// Bodies of these sizes are read into memory that is used again: smaller
	// ones cost nothing, larger ones are too rare to keep memory for.
	minPooledBody, maxPooledBody = 1 << minPower, 1 << maxPower
	minPower, maxPower           = 12, 23
	// bodySteps are the sizes between one power of two and the next, so that at most
	// an eighth of a buffer is wasted.
	bodySteps = 8
)

// bodyPools hold *[]byte by size class.
var bodyPools [(maxPower-minPower)*bodySteps + 1]sync.Pool //nolint:gochecknoglobals // pools are shared by nature

// bodyClass gives the class whose buffers hold n bytes, and their size; ok is
// false for bodies whose memory is not used again.
func bodyClass(n int64) (class, size int, ok bool) {
	if n < minPooledBody || n > maxPooledBody {
		return 0, int(n), false
	}
	power := bits.Len64(uint64(n)) - 1 // 2^power <= n
	step := 1 << power / bodySteps
	k := (int(n) - 1<<power + step - 1) / step // steps above 2^power
	class = (power-minPower)*bodySteps + k     // k = bodySteps is the next power's first
	return class, 1<<power + k*step, true
}

// getBuffer gives room for n bytes or more; pooled is nil if it is not to be used
// again, else for drop.
func getBuffer(n int64) (buf []byte, pooled *[]byte) {
	class, size, ok := bodyClass(n)
	if !ok {
		return make([]byte, n), nil
	}
	if pooled, _ = bodyPools[class].Get().(*[]byte); pooled == nil {
		b := make([]byte, size)
		pooled = &b
	}
	return *pooled, pooled
}

// putBuffer lets the next body have the buffer.
func putBuffer(pooled *[]byte) {
	if pooled != nil {
		class, _, _ := bodyClass(int64(len(*pooled)))
		bodyPools[class].Put(pooled)
	}
}

// Body is one request body. It belongs to one goroutine.
type Body struct {
	bodies *Bodies
	bytes  []byte
	pooled *[]byte // where bytes lie, nil if that is not used again
	held   int64   // bytes of it that are counted in of
}

// Read reads a body to its end, into one buffer. length is what was announced, 0 or
// less if nothing was. With an error the Body holds what came, and is to be released
// as well.
func (b *Bodies) Read(r io.Reader, length int64) (*Body, error) {
	body := &Body{bodies: b}
	var err error
	if length > 0 {
		err = body.readAnnounced(r, length)
	} else {
		err = body.readUnannounced(r)
	}
	return body, err
}

// Bytes is the body. Nobody may change it, or read it after Release.
func (b *Body) Bytes() []byte { return b.bytes }

// Release lets go of the bytes: an open stream must not hold its prompt. again tells
// that nobody else reads them any more, so that the next body may have their memory.
// More calls do no harm.
func (b *Body) Release(again bool) {
	if again {
		putBuffer(b.pooled)
	}
	b.bytes, b.pooled = nil, nil
	b.uncount(b.held)
}

// countedBuffer gives a buffer for n bytes of the body, which is counted unless it is small.
func (b *Body) countedBuffer(n int64) (buf []byte, pooled *[]byte, err error) {
	if n < minPooledBody {
		return make([]byte, n), nil, nil
	}
	_, size, _ := bodyClass(n)
	if err := b.bodies.reserve(b.held, int64(size)); err != nil {
		return nil, nil, err
	}
	buf, pooled = getBuffer(n)
	b.held += int64(size)
	return buf, pooled, nil
}

// uncount counts n bytes that are not held any more.
func (b *Body) uncount(n int64) {
	if n > 0 {
		b.held -= n
		b.bodies.held.Add(-n)
	}
}

const (
	// firstBuffer is the size up to which a body gets all its memory before any of it
	// has come.
	firstBuffer = 16 << 10
	// growFactor is how many bytes of memory one that came is good for, and up to
	// twice that for the whole: who announces much and sends little holds little.
	growFactor = 4
)

// readAnnounced reads a body of known length.
func (b *Body) readAnnounced(r io.Reader, length int64) error {
	room := min(length, firstBuffer)
	err := b.growAndRead(r, room)
	for err == nil && room < length {
		if room *= growFactor; 2*room > length {
			room = length // a little more trust, for which it is moved once less
		}
		err = b.growAndRead(r, room)
	}
	if err != nil {
		return err
	}
	// The server stops at the announced length; this read sees its EOF, and
	// any other reader's surplus.
	var one [1]byte
	if m, err := r.Read(one[:]); m != 0 || (err != nil && err != io.EOF) {
		return errors.Join(errSurplus, err)
	}
	return nil
}

// growAndRead reads on until the first room bytes are there, in a buffer that replaces
// the one in which the body has lain.
func (b *Body) growAndRead(r io.Reader, room int64) error {
	before := b.held
	buf, pooled, err := b.countedBuffer(room)
	if err != nil {
		return err
	}
	buf = buf[:room]
	n := copy(buf, b.bytes)
	putBuffer(b.pooled) // no leg has seen it
	b.pooled = pooled
	b.uncount(before)
	m, err := io.ReadFull(r, buf[n:])
	b.bytes = buf[:n+m]
	if err == io.EOF && n > 0 { //nolint:errorlint // one that is wrapped is a cut, not the end
		err = io.ErrUnexpectedEOF
	}
	return err
}

// A body of unknown length is read into pieces, a small one first, and put
// together when its length is known: one copy, where a buffer that grows takes
// several and leaves as many sizes behind.
const (
	firstPieceSize = minPooledBody
	pieceSize      = 64 << 10
)

// readUnannounced reads a body of unknown length.
func (b *Body) readUnannounced(r io.Reader) error {
	var full []*[]byte // pieces before the last
	defer func() {
		for _, p := range full {
			b.uncount(int64(len(*p)))
			putBuffer(p) // no leg has seen it
		}
	}()
	last, pooled, err := b.countedBuffer(firstPieceSize)
	if err != nil {
		return err
	}
	b.pooled = pooled
	for before, n := 0, 0; ; {
		m, err := r.Read(last[n:])
		n += m
		b.bytes = last[:n]
		switch {
		case err == nil && n < len(last):
		case err == nil:
			full = append(full, b.pooled)
			before += n
			n = 0
			if last, b.pooled, err = b.countedBuffer(pieceSize); err != nil {
				return err
			}
		case len(full) == 0 || err != io.EOF: //nolint:errorlint // the same
			return ignoreEOF(err)
		default:
			full = append(full, b.pooled)
			b.bytes, b.pooled, err = b.countedBuffer(int64(before + n))
			if err != nil {
				return err
			}
			b.bytes = b.bytes[:before+n]
			rest := b.bytes
			for _, p := range full {
				rest = rest[copy(rest, *p):]
			}
			return nil
		}
	}
}

// ignoreEOF takes the end for no error. Only io.EOF itself is the end; what wraps it
// is a body cut short.
func ignoreEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // see above
		return nil
	}
	return err
}

var errSurplus = errors.New("more bytes than announced")
