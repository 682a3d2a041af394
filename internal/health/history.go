package health

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// historyLasts is how long a slow answer is remembered.
const historyLasts = 5 * time.Minute

// history holds the slow answers of each engine that was slow lately, so that it gets more time
// when it is slow again.
type history struct {
	limit time.Duration // answers that took longer count as this long
	mu    sync.Mutex
	slow  map[string][]slowAnswer // by address, each later and quicker than the one before
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
	took = min(took, h.limit)
	for a, answers := range h.slow {
		h.slow[a] = slices.DeleteFunc(answers, func(s slowAnswer) bool {
			return now.Sub(s.at) > historyLasts || a == address && s.took <= took
		})
	}
	maps.DeleteFunc(h.slow, func(_ string, answers []slowAnswer) bool { return len(answers) == 0 })
	if took > checkInterval {
		h.slow[address] = append(h.slow[address], slowAnswer{took, now})
	}
}

// slowest returns the time of the slowest remembered answer of an engine.
func (h *history) slowest(address string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.slow[address] {
		if time.Since(s.at) <= historyLasts {
			return s.took
		}
	}
	return 0
}
