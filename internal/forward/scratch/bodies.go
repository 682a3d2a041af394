package scratch

import (
	"errors"
	"sync/atomic"
)

// Bodies reads request bodies and counts the memory of those that are being read or may
// still be sent. Bodies under minPooledBody are not counted: they need no more memory than
// their connection, and are accepted even if there is no memory for others. A single body
// is always accepted. The zero value has no bound.
type Bodies struct {
	limit   int64 // bytes, 0 for none
	held    atomic.Int64
	refused atomic.Int64 // requests
}

// NewBodies bounds the memory of all bodies together; limit is in bytes, 0 for none.
func NewBodies(limit int64) *Bodies { return &Bodies{limit: limit} }

// ErrNoMemory is returned if a body would exceed the bound on all bodies together.
var ErrNoMemory = errors.New("too many request bodies at once")

// Fits reports whether a body of n bytes would be accepted now.
func (b *Bodies) Fits(n int64) bool {
	all := b.held.Load()
	return n <= firstBuffer || b.limit <= 0 || all == 0 || all+n <= b.limit
}

// Refuse counts a request that was refused because of the bound.
func (b *Bodies) Refuse() { b.refused.Add(1) }

// Memory returns the bytes of request bodies in memory, their bound (0: none), and the
// number of requests that were refused because of it.
func (b *Bodies) Memory() (held, limit, refused int64) {
	return b.held.Load(), b.limit, b.refused.Load()
}

// Reserve counts n bytes of an answer that is held back. Unlike a single request body, an answer
// never exceeds the bound, because no client knows its size. The caller releases the bytes with Free.
func (b *Bodies) Reserve(n int64) error { return b.reserve(-1, n) }

// Free releases n bytes of Reserve.
func (b *Bodies) Free(n int64) { b.held.Add(-n) }

// reserve counts n more bytes for a body for which mine are counted already.
func (b *Bodies) reserve(mine, n int64) error {
	for {
		all := b.held.Load()
		if b.limit > 0 && all+n > b.limit && all > mine {
			return ErrNoMemory
		}
		if b.held.CompareAndSwap(all, all+n) {
			return nil
		}
	}
}
