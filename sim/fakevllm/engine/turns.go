package engine

import (
	"sync"
	"time"
)

// turns lets one in at a time, first come, first served.
type turns struct {
	mu   sync.Mutex // guards everything below
	busy bool
	line []chan struct{}
	// ended is when the last turn was to end. Work that waited begins then, so
	// that the clock's coarseness does not add up.
	ended time.Time
}

// join returns the channel that is closed when the caller's turn has come, nil when
// that is now.
func (t *turns) join() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.busy {
		t.busy, t.ended = true, time.Now()
		return nil
	}
	turn := make(chan struct{})
	t.line = append(t.line, turn)
	return turn
}

// leave ends a turn or, with its channel, the wait for one.
func (t *turns) leave(turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, other := range t.line {
		if other == turn {
			t.line = append(t.line[:i:i], t.line[i+1:]...)
			return
		}
	}
	if len(t.line) == 0 {
		t.busy = false
		return
	}
	close(t.line[0])
	t.line = t.line[1:]
}

// work adds to the time of the present turn and reports when it will have passed.
func (t *turns) work(d time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = t.ended.Add(d)
	return t.ended
}

// idle tells the present turn that it has done nothing until now.
func (t *turns) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = time.Now()
}
