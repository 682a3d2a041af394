package sched

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// pins records the prefill instances that hold KV caches which were never fetched, and until when. It is
// written when a request fails, and read when an instance is drained.
type pins struct {
	mu    sync.Mutex // guards until
	until map[string]time.Time
}

// pinned returns the key of an engine in pins: address and incarnation, because a restart clears its KV
// cache.
func pinned(in *instance.Instance) string { return in.Address + " " + in.Incarnation() }

func (p *pins) add(engine string, until, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, t := range p.until {
		if !t.After(now) {
			delete(p.until, a)
		}
	}
	if until.After(now) && until.After(p.until[engine]) {
		if p.until == nil {
			p.until = map[string]time.Time{}
		}
		p.until[engine] = until
	}
}

// Unfetched records that a prefill instance holds the KV cache of this pick until the given time, because
// decode has not fetched it. It has no effect after Done: decode has fetched it then.
func (a *Assignment) Unfetched(until time.Time) {
	if a.pins != nil && !a.done.Load() {
		a.pins.add(pinned(a.Instance), until, time.Now())
	}
}

// Pinned reports whether a prefill instance holds KV caches that were never fetched.
func (l *Loads) Pinned(in *instance.Instance, now time.Time) bool {
	if in.Role != instance.Prefill {
		return false
	}
	l.pins.mu.Lock()
	defer l.pins.mu.Unlock()
	return l.pins.until[pinned(in)].After(now)
}
