package forward

import (
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// bodies counts the memory of all request bodies that are being read or may still be
// sent. Those under minPooledBody are left out: they cost no more than their connection
// does, and are served also when no room for others is left. A body that is the only one
// always finds room.
type bodies struct {
	limit   int64 // bytes, 0 for none
	held    atomic.Int64
	refused atomic.Int64 // requests
}

var errNoRoom = errors.New("too many request bodies at once")

// take books n more bytes for a body that has mine.
func (b *bodies) take(mine, n int64) error {
	for {
		all := b.held.Load()
		if b.limit > 0 && all+n > b.limit && all > mine {
			return errNoRoom
		}
		if b.held.CompareAndSwap(all, all+n) {
			return nil
		}
	}
}

// fits tells whether a body of n bytes would find room now.
func (b *bodies) fits(n int64) bool {
	all := b.held.Load()
	return b.limit <= 0 || all == 0 || all+n <= b.limit
}

// BodyMemory tells how many bytes of request bodies are held, how many there may be at
// most (0: as many as come), and how many requests were refused for want of room.
func (h *Handler) BodyMemory() (held, limit, refused int64) {
	return h.bodies.held.Load(), h.bodies.limit, h.bodies.refused.Load()
}

// roomFor gives a buffer for n bytes of the exchange's body that is counted, or the
// exchange's own memory for a small one.
func (x *exchange) roomFor(n int64) (buf []byte, pooled *[]byte, err error) {
	if n < minPooledBody {
		return x.borrow().body.take(int(n), minPooledBody, minPooledBody), nil, nil
	}
	size := bodySize(n)
	if err := x.h.bodies.take(x.held, size); err != nil {
		return nil, nil, err
	}
	buf, pooled = x.h.bodyBuffer(n)
	if more := int64(len(buf)) - size; more != 0 { // a larger spare
		x.h.bodies.held.Add(more)
	}
	x.held += int64(len(buf))
	return buf, pooled, nil
}

// letGo is told of n bytes that are not held any more.
func (x *exchange) letGo(n int64) {
	if n > 0 {
		x.held -= n
		x.h.bodies.held.Add(-n)
	}
}

// noRoom answers a request whose body found no room.
func (x *exchange) noRoom() {
	x.h.bodies.refused.Add(1)
	x.w.Header().Set("Connection", "close") // the rest is not worth reading
	x.refuse(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: retryWait,
		Message: "this proxy holds as many request bodies as it has memory for (--max-bodies-memory); try again"})
}
