package upstream

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxIdle bounds the unused connections to one instance.
const maxIdle = 1024

// life tells one incarnation of an instance from the next, as
// instance.Incarnation does, without making a string.
type life struct {
	id       string
	revision int64 // of a record without an id
}

func lifeOf(in *instance.Instance) life {
	if in.Record.ID != "" {
		return life{id: in.Record.ID}
	}
	return life{revision: in.CreateRevision}
}

// host holds what is known of one instance. An engine in both roles has two,
// since its records may name their incarnations differently.
type host struct {
	mu   sync.Mutex // guards what follows, and conn.since of idle
	idle []*conn    // the last one was used last
	life life
	// generation counts incarnations and Forget: connections of an earlier one
	// are not used again.
	generation uint64
	active     int32 // exchanges that may bring a connection back
	gone       bool  // taken out of Pool.hosts
}

// drop empties the idle list; the caller closes what it gets, without the lock.
func (h *host) drop() []*conn {
	dead := h.idle
	h.idle = nil
	return dead
}

// enter finds the host of an instance and counts the caller as active there. dead
// are connections to close: those to an earlier life of the instance.
func (p *Pool) enter(in *instance.Instance) (h *host, dead []*conn) {
	for {
		h = p.host(in.Key)
		h.mu.Lock()
		if h.gone {
			h.mu.Unlock()
			continue
		}
		h.active++
		if l := lifeOf(in); l != h.life {
			h.life = l
			h.generation++
			dead = h.drop()
		}
		h.mu.Unlock()
		return h, dead
	}
}

func secure(in *instance.Instance) bool { return in.Record.Scheme == "https" }

func (p *Pool) host(k instance.Key) *host {
	p.mu.RLock()
	h := p.hosts[k]
	p.mu.RUnlock()
	if h != nil {
		return h
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h = p.hosts[k]; h == nil {
		h = &host{}
		p.hosts[k] = h
	}
	return h
}

// leave takes the caller's count off.
func (h *host) leave() {
	h.mu.Lock()
	h.active--
	h.mu.Unlock()
}

// reuse gives the connection that was used last, if it is young enough at that time.
// The exchange looks whether the peer has closed it or sent anything since; that is
// never left out: bytes that nobody asked for would become the next client's answer.
// nil means dial.
func (p *Pool) reuse(h *host, at time.Time) *conn {
	oldest := at.Sub(p.begun) - p.opts.IdleTimeout
	h.mu.Lock()
	n := len(h.idle) - 1
	if n < 0 {
		h.mu.Unlock()
		return nil
	}
	c := h.idle[n]
	if c.since < oldest { // and so are all below it
		dead := h.drop()
		h.mu.Unlock()
		closeAll(dead)
		return nil
	}
	h.idle[n] = nil
	h.idle = h.idle[:n]
	h.mu.Unlock()
	c.reused = true
	return c
}

// release ends an exchange on c: the connection lies idle again or is closed.
func (p *Pool) release(c *conn, again bool) {
	h := c.host
	h.mu.Lock()
	h.active--
	again = again && c.generation == h.generation && len(h.idle) < maxIdle && !h.gone && !p.closed.Load()
	if again {
		c.since = p.now()
		h.idle = append(h.idle, c)
	}
	h.mu.Unlock()
	switch {
	case !again:
		c.close()
	case !p.sweeping.Load() && p.sweeping.CompareAndSwap(false, true):
		p.sweeper.Reset(p.sweepEvery())
	}
}

// now is the pool's clock.
func (p *Pool) now() time.Duration { return time.Since(p.begun) }

func (p *Pool) sweepEvery() time.Duration { return max(p.opts.IdleTimeout/8, time.Millisecond) }

// sweep closes the connections that were idle too long and forgets hosts of
// which nothing is left. It runs on a timer, which is set only while something
// lies idle.
func (p *Pool) sweep() {
	p.sweeping.Store(false) // before the scan: who comes later sets the timer anew
	oldest := p.now() - p.opts.IdleTimeout
	var dead []*conn
	left := false
	p.mu.Lock()
	for k, h := range p.hosts {
		h.mu.Lock()
		n := 0
		for n < len(h.idle) && h.idle[n].since < oldest {
			n++
		}
		if n > 0 {
			dead = append(dead, h.idle[:n]...)
			rest := copy(h.idle, h.idle[n:])
			clear(h.idle[rest:])
			h.idle = h.idle[:rest]
		}
		if len(h.idle) > 0 {
			left = true
		} else if h.active == 0 {
			h.gone = true
			delete(p.hosts, k)
		}
		h.mu.Unlock()
	}
	if left && !p.closed.Load() && p.sweeping.CompareAndSwap(false, true) {
		p.sweeper.Reset(p.sweepEvery())
	}
	p.mu.Unlock()
	closeAll(dead)
}

// Forget closes the idle connections to an address, in any role, and lets no
// running exchange bring one back.
func (p *Pool) Forget(address string) {
	p.discard(func(k instance.Key) bool { return k.Address == address })
}

func (p *Pool) discard(which func(instance.Key) bool) {
	var dead []*conn
	p.mu.RLock()
	for k, h := range p.hosts {
		if which(k) {
			h.mu.Lock()
			h.generation++
			dead = append(dead, h.drop()...)
			h.mu.Unlock()
		}
	}
	p.mu.RUnlock()
	closeAll(dead)
}

func closeAll(list []*conn) {
	for _, c := range list {
		c.close()
	}
}
