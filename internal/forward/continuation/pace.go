package continuation

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Pace bounds how many streams go on at the same time, the oldest first, so that the streams of a
// lost instance do not slow down those of the others. The zero value is ready. It is safe for
// concurrent use.
type Pace struct {
	mu      sync.Mutex // guards what follows
	moving  int
	waiting []*waiter // the oldest first
}

// waiter is a stream that waits for its turn.
type waiter struct {
	began time.Time
	turn  chan struct{} // closed when it is its turn
}

// Begin blocks until a stream that began at a given time may go on, or ctx ends. limit is how many
// may at the same time; at least one may. The caller calls end, once, when the stream continues
// or failed.
func (p *Pace) Begin(ctx context.Context, began time.Time, limit int) (end func(), err error) {
	p.mu.Lock()
	if p.moving < max(limit, 1) {
		p.moving++
		p.mu.Unlock()
		return p.end, nil
	}
	w := &waiter{began: began, turn: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(p.waiting, w, func(a, b *waiter) int { return a.began.Compare(b.began) })
	p.waiting = slices.Insert(p.waiting, at, w)
	p.mu.Unlock()
	select {
	case <-w.turn:
		return p.end, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at = slices.Index(p.waiting, w); at >= 0 {
		p.waiting = slices.Delete(p.waiting, at, at+1)
	} else {
		p.pass() // its turn came at the same moment
	}
	return nil, context.Cause(ctx)
}

// TryBegin is Begin for a stream that need not go on now. It returns nil if the stream would have to wait.
func (p *Pace) TryBegin(limit int) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 || p.moving >= max(limit, 1) {
		return nil
	}
	p.moving++
	return p.end
}

func (p *Pace) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass()
}

// pass passes a turn on; p.mu is held.
func (p *Pace) pass() {
	if len(p.waiting) == 0 {
		p.moving--
		return
	}
	close(p.waiting[0].turn)
	p.waiting = slices.Delete(p.waiting, 0, 1)
}
