package forward

import "sync"

const (
	// smallBuffer is what an open stream holds: tokens come one by one, an
	// event of vLLM's is 200 to 400 bytes, and thousands of streams may be open.
	smallBuffer = 2 << 10
	// largeBuffer is for streams that come in bursts: fewer reads and writes.
	largeBuffer = 32 << 10
	// maxEvent bounds one server-sent event.
	maxEvent = 8 << 20
	// calmReads in a row that would have fitted a small buffer give the large
	// one back.
	calmReads = 32
)

var (
	smallBuffers = bufferPool(smallBuffer) //nolint:gochecknoglobals // a pool is shared by nature
	largeBuffers = bufferPool(largeBuffer) //nolint:gochecknoglobals // a pool is shared by nature
)

func bufferPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}
}

// eventBuffer holds what came of a stream and was not sent on yet. It is small
// until a stream turns out to need more. The zero value is ready.
type eventBuffer struct {
	buf    []byte
	n      int     // bytes in buf
	pooled *[]byte // buf's place in its pool, nil if it has none
	calm   int     // reads in a row that a small buffer would have held
}

// makeRoom makes sure that something can be read into buf[n:]; false means
// that one event has become too large.
func (e *eventBuffer) makeRoom() bool {
	switch {
	case e.pooled == nil && e.buf == nil:
		e.take(smallBuffers)
	case e.n < len(e.buf):
		if len(e.buf) > smallBuffer && e.n == 0 && e.calm >= calmReads {
			e.release()
			e.take(smallBuffers)
		}
	case len(e.buf) >= maxEvent:
		return false
	default:
		e.grow()
	}
	return true
}

func (e *eventBuffer) take(pool *sync.Pool) {
	e.pooled, _ = pool.Get().(*[]byte)
	e.buf, e.calm = *e.pooled, 0
}

func (e *eventBuffer) grow() {
	old := *e
	if len(old.buf) < largeBuffer {
		e.take(largeBuffers)
	} else {
		e.pooled, e.buf = nil, make([]byte, 2*len(old.buf))
	}
	copy(e.buf, old.buf[:old.n])
	old.release()
}

// wantLarge makes room for a burst.
func (e *eventBuffer) wantLarge() {
	if len(e.buf) < largeBuffer {
		e.grow()
	}
}

// drop takes the first k bytes, which have been sent on, out of the buffer.
func (e *eventBuffer) drop(k int) {
	if e.n >= smallBuffer {
		e.calm = 0
	} else {
		e.calm++
	}
	full := e.n == len(e.buf)
	e.n = copy(e.buf, e.buf[k:e.n])
	if full && len(e.buf) < largeBuffer {
		e.grow() // there is more where this came from
	}
}

// release gives the buffer back; nothing may use its bytes any more.
func (e *eventBuffer) release() {
	if e.pooled != nil {
		if len(e.buf) == smallBuffer {
			smallBuffers.Put(e.pooled)
		} else {
			largeBuffers.Put(e.pooled)
		}
	}
	e.buf, e.pooled = nil, nil
}
