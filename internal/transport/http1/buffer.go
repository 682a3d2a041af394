package http1

import "sync"

// bufferSize is the size of a Buffer that has not grown.
const bufferSize = 4 << 10

var buffers = sync.Pool{New: func() any { //nolint:gochecknoglobals // a pool is shared by nature
	b := make([]byte, bufferSize)
	return &b
}}

// Buffer holds bytes that were read from a connection and not taken yet. An empty one
// needs no memory. The zero value is empty.
type Buffer struct {
	b    *[]byte // nil while it has no memory
	r, w int     // (*b)[r:w] is not taken yet
}

// Bytes returns the bytes that were read and not taken yet.
func (b *Buffer) Bytes() []byte {
	if b.b == nil {
		return nil
	}
	return (*b.b)[b.r:b.w]
}

// Free returns space for the next read, at least one byte. It is valid until the next
// call of the Buffer. Add reports how much of it was filled.
func (b *Buffer) Free() []byte {
	switch {
	case b.b == nil:
		b.b, _ = buffers.Get().(*[]byte)
	case b.w < len(*b.b):
	case b.r > 0:
		b.w = copy(*b.b, (*b.b)[b.r:b.w])
		b.r = 0
	default:
		bigger := make([]byte, 2*len(*b.b))
		w := copy(bigger, *b.b)
		b.Release()
		b.b, b.w = &bigger, w
	}
	return (*b.b)[b.w:]
}

// Add reports whether n bytes were read into the space that Free gave. A Buffer that is
// empty after that returns its memory.
func (b *Buffer) Add(n int) {
	b.w += n
	b.Take(0)
}

// Take marks the first n bytes as taken.
func (b *Buffer) Take(n int) {
	if b.r += n; b.r == b.w {
		b.Release()
	}
}

// Release drops the bytes that were not taken yet, and returns the memory.
func (b *Buffer) Release() {
	if b.b != nil && len(*b.b) == bufferSize {
		buffers.Put(b.b)
	}
	*b = Buffer{}
}
