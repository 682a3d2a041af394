package scratch

import (
	"errors"
	"sync/atomic"
)

// Bodies reads request bodies and counts the memory of all that are being read or
// may still be sent. Those under minPooledBody are left out: they cost no more than
// their connection does, and are served also when no room for others is left. A body
// that is the only one always finds room. The zero value has no bound.
type Bodies struct {
	limit   int64 // bytes, 0 for none
	held    atomic.Int64
	refused atomic.Int64 // requests
}

// NewBodies bounds the memory of all bodies together; limit is in bytes, 0 for none.
func NewBodies(limit int64) *Bodies { return &Bodies{limit: limit} }

// ErrNoRoom tells that a body would pass the bound of all bodies together.
var ErrNoRoom = errors.New("too many request bodies at once")

// Fits tells whether a body of n bytes would find room now.
func (b *Bodies) Fits(n int64) bool {
	all := b.held.Load()
	return n <= firstBuffer || b.limit <= 0 || all == 0 || all+n <= b.limit
}

// Refuse counts a request that was refused for want of room.
func (b *Bodies) Refuse() { b.refused.Add(1) }

// Memory tells how many bytes of request bodies are held, how many there may be at
// most (0: as many as come), and how many requests were refused for want of room.
func (b *Bodies) Memory() (held, limit, refused int64) {
	return b.held.Load(), b.limit, b.refused.Load()
}

// reserve books n more bytes for a body that has mine.
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
