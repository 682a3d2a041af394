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

// pinned names an engine in pins: its address and incarnation, because a restarted one holds nothing.
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

// Unfetched reports whether a prefill instance holds the KV cache of this pick until then, because
// decode has not fetched it. After Done it does nothing: decode has fetched it then.
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
