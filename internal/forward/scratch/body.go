package scratch

import (
	"errors"
	"io"
	"math/bits"
	"sync"
)

const (
	// Bodies of these sizes are read into pooled memory: smaller ones are
	// cheap to allocate, larger ones are too rare to keep memory for.
	minPooledBody, maxPooledBody = 1 << minPower, 1 << maxPower
	minPower, maxPower           = 12, 23
	// bodySteps is the number of sizes from one power of two to the next, so that at most an
	// eighth of a buffer is wasted.
	bodySteps = 8
)

// bodyPools hold *[]byte, by size class.
var bodyPools [(maxPower-minPower)*bodySteps + 1]sync.Pool //nolint:gochecknoglobals // pools are shared by nature

// bodyClass returns the size class for n bytes, and the size of its buffers; ok is false
// for bodies whose memory is not pooled.
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

// getBuffer returns a buffer of n bytes or more. pooled is for putBuffer, nil if the buffer
// is not from a pool.
func getBuffer(n int64) (buf []byte, pooled *[]byte) {
	class, size, ok := bodyClass(n)
	if !ok {
		return make([]byte, n), nil
	}
	if pooled, _ = bodyPools[class].Get().(*[]byte); pooled == nil {
		pooled = new(make([]byte, size))
	}
	return *pooled, pooled
}

// putBuffer puts a buffer back into its pool.
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
	pooled *[]byte // the pooled buffer of bytes, nil if it is not from a pool
	held   int64   // bytes of this body that are counted in bodies
}

// Read reads a body to its end, into one buffer. length is the Content-Length, 0 or less if
// there is none. After an error, the Body has the bytes that arrived; it must be released, too.
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

// Bytes returns the body. It must not be changed, or read after Release.
func (b *Body) Bytes() []byte { return b.bytes }

// Release frees the bytes: an open stream must not hold its prompt. reuse reports whether no leg
// reads them any more, so that the next body may use their memory. Further calls have no effect.
func (b *Body) Release(reuse bool) {
	if reuse {
		putBuffer(b.pooled)
	}
	b.bodies.held.Add(-b.held)
	b.bytes, b.pooled, b.held = nil, nil, 0
}

const (
	// firstBuffer is the size up to which a body gets all its memory before its first byte arrives.
	firstBuffer = 16 << 10
	// growFactor is the ratio of a body's next buffer to the bytes read so far, up to twice that if
	// the whole body then fits. A client that announces much and sends little must hold little memory.
	growFactor = 4
)

// readAnnounced reads a body of known length.
func (b *Body) readAnnounced(r io.Reader, length int64) error {
	size := min(length, firstBuffer)
	err := b.growAndRead(r, size)
	for err == nil && size < length {
		if size *= growFactor; 2*size > length {
			size = length // a little more memory at once saves one copy
		}
		err = b.growAndRead(r, size)
	}
	if err != nil {
		return err
	}
	// The server's reader ends at the announced length: this read gets EOF. Other readers may have more.
	var one [1]byte
	if m, err := r.Read(one[:]); m != 0 || (err != nil && err != io.EOF) {
		return errors.Join(errSurplus, err)
	}
	return nil
}

// growAndRead grows the body's buffer to size bytes, and reads until it is full.
func (b *Body) growAndRead(r io.Reader, size int64) error {
	if err := b.grow(size); err != nil {
		return err
	}
	n := len(b.bytes)
	m, err := io.ReadFull(r, b.bytes[n:size])
	b.bytes = b.bytes[:n+m]
	if err == io.EOF && n > 0 { // a wrapped EOF is a body cut short, not the end
		err = io.ErrUnexpectedEOF
	}
	return err
}

// grow replaces the body's buffer by one of at least size bytes, and copies the bytes read
// so far. It counts the new buffer in place of the old one, unless it is small.
func (b *Body) grow(size int64) error {
	if size >= minPooledBody {
		_, n, _ := bodyClass(size)
		if err := b.bodies.reserve(b.held, int64(n)-b.held); err != nil {
			return err
		}
		b.held = int64(n)
	}
	buf, pooled := getBuffer(size)
	n := copy(buf, b.bytes)
	putBuffer(b.pooled) // no leg has seen it
	b.bytes, b.pooled = buf[:n], pooled
	return nil
}

// readUnannounced reads a body of unknown length. A full buffer is replaced by one of twice its size.
func (b *Body) readUnannounced(r io.Reader) error {
	// The first buffer is not counted: a body that fits in it needs no memory from the bound.
	b.bytes, b.pooled = getBuffer(minPooledBody)
	for n := 0; ; {
		m, err := r.Read(b.bytes[n:cap(b.bytes)])
		n += m
		b.bytes = b.bytes[:n]
		if err == nil && n == cap(b.bytes) {
			err = b.grow(2 * int64(n))
		}
		if err == io.EOF { //nolint:errorlint // an error that wraps it is a body cut short (TestTruncatedBody_NotComplete)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var errSurplus = errors.New("more bytes than announced")
