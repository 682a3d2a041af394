package scratch

import (
	"errors"
	"sync"
)

const (
	// smallBuffer is the buffer size of a usual stream, in bytes: tokens arrive one by one, an
	// event of vLLM has 200 to 400 bytes, and thousands of streams may be open.
	smallBuffer = 2 << 10
	// largeBuffer is the buffer size of a stream that arrives in bursts: it saves reads and writes.
	largeBuffer = 32 << 10
	// MaxEvent bounds one server-sent event, in bytes. It is also the size of the largest buffer
	// that is not counted as memory of bodies.
	MaxEvent = 8 << 20
	// shrinkAfter is the number of consecutive reads that must fit a small buffer before the
	// large one is released.
	shrinkAfter = 32
)

// ErrEventTooLarge is the error of an event of more than MaxEvent bytes.
var ErrEventTooLarge = errors.New("an event of more than 8 MiB")

var (
	smallBuffers = bufferPool(smallBuffer) //nolint:gochecknoglobals // a pool is shared by nature
	largeBuffers = bufferPool(largeBuffer) //nolint:gochecknoglobals // a pool is shared by nature
)

func bufferPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any { return new(make([]byte, size)) }}
}

// Events buffers the received bytes of a stream that were not relayed yet. The buffer is
// small until the stream needs more. The zero value is ready.
type Events struct {
	Buf    []byte
	N      int     // bytes in Buf
	Memory *Bodies // counts buffers of more than MaxEvent bytes; nil: they are not counted

	pooled     *[]byte // the pooled buffer that is Buf, nil if it is not from a pool
	reserved   int64   // bytes of Buf that are counted in Memory
	smallReads int     // consecutive reads that would have fitted a small buffer
}

// MakeSpace ensures that Buf[N:] is not empty. whole is the number of bytes at the front of
// Buf that are whole events. The error is ErrEventTooLarge if the event after them is
// larger than MaxEvent, and ErrNoMemory if Memory has no space for all of them.
func (e *Events) MakeSpace(whole int) error {
	switch {
	case e.pooled == nil && e.Buf == nil:
		e.takeFrom(smallBuffers)
	case e.N-whole >= MaxEvent:
		return ErrEventTooLarge
	case e.N < len(e.Buf):
		if len(e.Buf) > smallBuffer && e.N == 0 && e.smallReads >= shrinkAfter {
			e.Release()
			e.takeFrom(smallBuffers)
		}
	default:
		return e.grow()
	}
	return nil
}

func (e *Events) takeFrom(pool *sync.Pool) {
	e.pooled, _ = pool.Get().(*[]byte)
	e.Buf, e.smallReads, e.reserved = *e.pooled, 0, 0
}

func (e *Events) grow() error {
	old := *e
	if len(old.Buf) < largeBuffer {
		e.takeFrom(largeBuffers)
	} else {
		size := 2 * len(old.Buf)
		if size > MaxEvent && e.Memory != nil {
			if err := e.Memory.Reserve(int64(size) - old.reserved); err != nil {
				return err
			}
			e.reserved, old.reserved = int64(size), 0
		}
		e.pooled, e.Buf = nil, make([]byte, size)
	}
	copy(e.Buf, old.Buf[:old.N])
	old.Release()
	return nil
}

// Cut removes n bytes at a position.
func (e *Events) Cut(at, n int) { e.N = at + copy(e.Buf[at:], e.Buf[at+n:e.N]) }

// Drop removes the first k bytes, which have been relayed.
func (e *Events) Drop(k int) {
	if e.N >= smallBuffer {
		e.smallReads = 0
	} else {
		e.smallReads++
	}
	full := e.N == len(e.Buf)
	e.N = copy(e.Buf, e.Buf[k:e.N])
	if full && len(e.Buf) < largeBuffer {
		_ = e.grow() // the engine sends more than the buffer holds; a large buffer is not counted in Memory
	}
}

// Release releases the buffer: nothing may use its bytes any more.
func (e *Events) Release() {
	if e.pooled != nil {
		if len(e.Buf) == smallBuffer {
			smallBuffers.Put(e.pooled)
		} else {
			largeBuffers.Put(e.pooled)
		}
	}
	if e.reserved > 0 {
		e.Memory.Free(e.reserved)
	}
	e.Buf, e.pooled, e.reserved = nil, nil, 0
}
