package continuation

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Pace bounds how many streams go on at the same time, the oldest first, so that the streams of a
// lost instance do not slow down those of the others. The zero value is ready. It is safe for
// concurrent use.
type Pace struct {
	mu      sync.Mutex // guards what follows
	moving  int
	waiting waiters
}

// waiter is a stream that waits for its turn.
type waiter struct {
	began time.Time
	turn  chan struct{} // closed when it is its turn
	at    int           // in the heap, -1 if it is in none
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
	heap.Push(&p.waiting, w)
	p.mu.Unlock()
	select {
	case <-w.turn:
		return p.end, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.at >= 0 {
		heap.Remove(&p.waiting, w.at)
		return nil, context.Cause(ctx)
	}
	p.pass() // its turn came at the same moment
	return nil, context.Cause(ctx)
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
	if w, ok := heap.Pop(&p.waiting).(*waiter); ok {
		close(w.turn)
	}
}

// waiters is a heap of streams, the oldest first. It implements heap.Interface.
type waiters []*waiter

func (w waiters) Len() int           { return len(w) }
func (w waiters) Less(i, j int) bool { return w[i].began.Before(w[j].began) }
func (w waiters) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].at, w[j].at = i, j
}

// Push implements heap.Interface.
func (w *waiters) Push(x any) {
	if one, ok := x.(*waiter); ok {
		one.at = len(*w)
		*w = append(*w, one)
	}
}

// Pop implements heap.Interface.
func (w *waiters) Pop() any {
	last := (*w)[len(*w)-1]
	*w, last.at = (*w)[:len(*w)-1], -1
	return last
}
