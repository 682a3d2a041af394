package continuation

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Pace bounds the number of streams that are continued at the same time, the oldest first.
// So the streams of a lost instance do not slow down those of other instances. The zero
// value is ready. It is safe for concurrent use.
type Pace struct {
	mu      sync.Mutex // guards the fields below
	moving  int
	waiting []*waiter // the oldest first
}

// waiter is a stream that waits for its turn.
type waiter struct {
	began time.Time
	turn  chan struct{} // closed when it is its turn
}

// Begin blocks until a stream that began at a given time may be continued, or ctx ends.
// limit returns the maximum number at the same time, at least 1; it may change while the
// stream waits. The caller calls end, once, when the stream continues or has failed.
func (p *Pace) Begin(ctx context.Context, began time.Time, limit func() int) (end func(), err error) {
	w := &waiter{began: began, turn: make(chan struct{})}
	n := limit()
	p.mu.Lock()
	at, _ := slices.BinarySearchFunc(p.waiting, w, func(a, b *waiter) int { return a.began.Compare(b.began) })
	p.waiting = slices.Insert(p.waiting, at, w)
	p.admit(n)
	p.mu.Unlock()
	end = func() { p.end(limit()) }
	select {
	case <-w.turn:
		return end, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	at = slices.Index(p.waiting, w)
	if at >= 0 {
		p.waiting = slices.Delete(p.waiting, at, at+1)
	}
	p.mu.Unlock()
	if at < 0 {
		end() // its turn came at the same moment
	}
	return nil, context.Cause(ctx)
}

// TryBegin is Begin for a stream that can stay on its leg. It returns nil if the stream would have to wait.
func (p *Pace) TryBegin(limit func() int) (end func()) {
	n := limit()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 || p.moving >= max(n, 1) {
		return nil
	}
	p.moving++
	return func() { p.end(limit()) }
}

func (p *Pace) end(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moving--
	p.admit(limit)
}

// admit lets the oldest streams continue, up to the limit; p.mu is held.
func (p *Pace) admit(limit int) {
	for len(p.waiting) > 0 && p.moving < max(limit, 1) {
		p.moving++
		close(p.waiting[0].turn)
		p.waiting = slices.Delete(p.waiting, 0, 1)
	}
}
