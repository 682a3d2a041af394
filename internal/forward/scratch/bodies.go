package scratch

import (
	"errors"
	"sync/atomic"
)

// Bodies reads request bodies and counts the memory of all that are being read or may
// still be sent. Those under minPooledBody are not counted: they need no more memory than
// their connection, and are served even if there is no memory for others. A body that is the
// only one is always taken. The zero value has no bound.
type Bodies struct {
	limit   int64 // bytes, 0 for none
	held    atomic.Int64
	refused atomic.Int64 // requests
}

// NewBodies bounds the memory of all bodies together; limit is in bytes, 0 for none.
func NewBodies(limit int64) *Bodies { return &Bodies{limit: limit} }

// ErrNoRoom is returned if all bodies together would exceed their bound with this one.
var ErrNoRoom = errors.New("too many request bodies at once")

// Fits reports whether a body of n bytes would be taken now.
func (b *Bodies) Fits(n int64) bool {
	all := b.held.Load()
	return n <= firstBuffer || b.limit <= 0 || all == 0 || all+n <= b.limit
}

// Refuse counts a request that was refused for the bound.
func (b *Bodies) Refuse() { b.refused.Add(1) }

// Memory reports how many bytes of request bodies are held, how many may be (0: no bound),
// and how many requests were refused for that bound.
func (b *Bodies) Memory() (held, limit, refused int64) {
	return b.held.Load(), b.limit, b.refused.Load()
}

// Reserve counts n bytes of an answer that is held back. Unlike a request body, an answer gets no
// memory beyond the bound: its size is known to no client. The caller releases them with Free.
func (b *Bodies) Reserve(n int64) error { return b.reserve(-1, n) }

// Free releases n bytes of Reserve.
func (b *Bodies) Free(n int64) { b.held.Add(-n) }

// reserve counts n more bytes for a body that has mine already.
func (b *Bodies) reserve(mine, n int64) error {
	for {
		all := b.held.Load()
		if b.limit > 0 && all+n > b.limit && all > mine {
			return ErrNoRoom
		}
		if b.held.CompareAndSwap(all, all+n) {
			return nil
		}
	}
}
