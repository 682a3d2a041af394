package http1

import "sync"

// bufferSize is the initial size of a Buffer in bytes.
const bufferSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new(make([]byte, bufferSize)) }} //nolint:gochecknoglobals // a pool is shared by nature

// Buffer holds bytes that were read from a connection and not yet taken. An empty Buffer
// holds no memory. The zero value is empty.
type Buffer struct {
	b    *[]byte // nil while the Buffer is empty
	r, w int     // (*b)[r:w] is not yet taken
}

// Bytes returns the bytes that were read and not yet taken.
func (b *Buffer) Bytes() []byte {
	if b.b == nil {
		return nil
	}
	return (*b.b)[b.r:b.w]
}

// Free returns space of at least one byte for the next read. It is valid until the next
// call of a method. The caller reports the number of bytes read with Add.
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

// Add appends the n bytes that were read into the space from Free. A Buffer that is still
// empty releases its memory.
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

// Release drops the bytes that were not yet taken and releases the memory.
func (b *Buffer) Release() {
	if b.b != nil && len(*b.b) == bufferSize {
		buffers.Put(b.b)
	}
	*b = Buffer{}
}
