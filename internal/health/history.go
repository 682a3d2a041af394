package health

import (
	"sync"
	"time"
)

// historyLasts is how long a slow answer is remembered.
const historyLasts = 5 * time.Minute

// history holds the slowest recent answer of each engine that was slow lately, so that it gets
// more time when it is slow again.
type history struct {
	limit time.Duration // answers that took longer count as this long
	mu    sync.Mutex
	slow  map[string]slowAnswer // by address
}

// slowAnswer is a late answer: how long it took, and when it came.
type slowAnswer struct {
	took time.Duration
	at   time.Time
}

// remember records an answer if it was slow.
func (h *history) remember(address string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for a, s := range h.slow {
		if now.Sub(s.at) > historyLasts {
			delete(h.slow, a)
		}
	}
	took = min(took, h.limit)
	if took > checkInterval && took > h.slow[address].took {
		h.slow[address] = slowAnswer{took, now}
	}
}

// slowest returns the time of the slowest remembered answer of an engine.
func (h *history) slowest(address string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, ok := h.slow[address]; ok && time.Since(s.at) <= historyLasts {
		return s.took
	}
	return 0
}
