package scratch

import "sync"

const (
	// smallBuffer is the buffer of a usual stream, in bytes: tokens come one by one, an
	// event of vLLM's has 200 to 400 bytes, and thousands of streams may be open.
	smallBuffer = 2 << 10
	// largeBuffer is the buffer of a stream that comes in bursts: fewer reads and writes.
	largeBuffer = 32 << 10
	// MaxEvent bounds one server-sent event, in bytes.
	MaxEvent = 8 << 20
	// shrinkAfter is how many reads in a row must fit a small buffer until the large
	// one is given back.
	shrinkAfter = 32
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

// Events buffers what has come of a stream and was not sent on yet. The buffer is small
// until the stream needs more. The zero value is ready.
type Events struct {
	Buf        []byte
	N          int     // bytes in Buf
	pooled     *[]byte // the pooled buffer that is Buf, nil if it is not of a pool
	smallReads int     // reads in a row that would have fitted a small buffer
}

// MakeSpace makes sure that Buf[N:] is not empty. False means that one event is larger
// than MaxEvent.
func (e *Events) MakeSpace() bool {
	switch {
	case e.pooled == nil && e.Buf == nil:
		e.takeFrom(smallBuffers)
	case e.N < len(e.Buf):
		if len(e.Buf) > smallBuffer && e.N == 0 && e.smallReads >= shrinkAfter {
			e.Release()
			e.takeFrom(smallBuffers)
		}
	case len(e.Buf) >= MaxEvent:
		return false
	default:
		e.grow()
	}
	return true
}

func (e *Events) takeFrom(pool *sync.Pool) {
	e.pooled, _ = pool.Get().(*[]byte)
	e.Buf, e.smallReads = *e.pooled, 0
}

func (e *Events) grow() {
	old := *e
	if len(old.Buf) < largeBuffer {
		e.takeFrom(largeBuffers)
	} else {
		e.pooled, e.Buf = nil, make([]byte, 2*len(old.Buf))
	}
	copy(e.Buf, old.Buf[:old.N])
	old.Release()
}

// Drop removes the first k bytes, which have been sent on.
func (e *Events) Drop(k int) {
	if e.N >= smallBuffer {
		e.smallReads = 0
	} else {
		e.smallReads++
	}
	full := e.N == len(e.Buf)
	e.N = copy(e.Buf, e.Buf[k:e.N])
	if full && len(e.Buf) < largeBuffer {
		e.grow() // the engine sends more than the buffer holds
	}
}

// Release gives the buffer back: nothing may use its bytes any more.
func (e *Events) Release() {
	if e.pooled != nil {
		if len(e.Buf) == smallBuffer {
			smallBuffers.Put(e.pooled)
		} else {
			largeBuffers.Put(e.pooled)
		}
	}
	e.Buf, e.pooled = nil, nil
}
