package sched

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// pins are the prefill instances that hold KV caches which were never fetched, and until
// when. They are written when a request fails, and read when an instance is drained.
type pins struct {
	mu    sync.Mutex // guards until
	until map[string]time.Time
}

func (p *pins) add(address string, until, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, t := range p.until {
		if !t.After(now) {
			delete(p.until, a)
		}
	}
	if until.After(now) && until.After(p.until[address]) {
		if p.until == nil {
			p.until = map[string]time.Time{}
		}
		p.until[address] = until
	}
}

// Unfetched reports whether a prefill instance holds the KV cache of this pick until then, because
// decode has not fetched it. After Done it does nothing: decode has fetched it then.
func (a *Assignment) Unfetched(until time.Time) {
	if a.pins != nil && !a.done.Load() {
		a.pins.add(a.Instance.Address, until, time.Now())
	}
}

// Pinned reports whether a prefill instance holds KV caches that were never fetched.
func (l *Loads) Pinned(k instance.Key, now time.Time) bool {
	if k.Role != instance.Prefill {
		return false
	}
	l.pins.mu.Lock()
	defer l.pins.mu.Unlock()
	return l.pins.until[k.Address].After(now)
}
