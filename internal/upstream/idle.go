package upstream

import (
	"sync"
	"sync/atomic"
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
//
// With many instances, what is kept of one is out of the processor's caches
// when its turn comes: what every exchange needs comes first and fills one line
// of them.
type host struct {
	mu sync.Mutex // guards what follows, but for seen and key, and conn.since of idle
	// seen is the entry that entered last, if it is spoken to without TLS: its
	// key and life are this host's, which need not be compared again.
	seen atomic.Pointer[instance.Instance]
	idle []*conn // the last one was used last
	// generation counts incarnations and Forget: connections of an earlier one
	// are not used again.
	generation uint64
	active     int32 // exchanges that may bring a connection back
	gone       bool  // taken out of Pool.hosts
	_          [8]byte

	key  instance.Key // never changed
	life life
}

// drop empties the idle list; the caller closes what it gets, without the lock.
func (h *host) drop() []*conn {
	dead := h.idle
	h.idle = nil
	return dead
}

// Place is where a client keeps its way to one instance, so that it need not
// look for it at every Request. The zero Place is ready. One belongs to one key
// and to one client, for as long as somebody keeps it; entries of the key may
// come and go meanwhile.
type Place struct{ host atomic.Pointer[host] }

// NewPlace makes a place for whoever keeps things by key (sched.Options.Attach).
func NewPlace(instance.Key) any { return new(Place) }

// enter finds the host of an instance, at its place if there is one, and counts
// the caller as active there. dead are connections to close.
func (p *Pool) enter(in *instance.Instance, at *Place) (h *host, dead []*conn) {
	for {
		h = p.find(in, at)
		h.mu.Lock()
		if h.gone {
			h.mu.Unlock()
			at.leave(h)
			continue
		}
		h.active++
		if h.seen.Load() != in {
			dead = h.meet(in)
		}
		h.mu.Unlock()
		return h, dead
	}
}

// meet is told of an entry that is not the last one seen. The lock is held.
func (h *host) meet(in *instance.Instance) (dead []*conn) {
	if l := lifeOf(in); l != h.life {
		h.life = l
		h.generation++
		dead = h.drop()
	}
	if !secure(in) {
		h.seen.Store(in)
	}
	return dead
}

// find gives the host of an instance, which may be gone. The host at a place is
// taken for what it is: a place that is used for another key is not believed.
func (p *Pool) find(in *instance.Instance, at *Place) *host {
	if at == nil {
		return p.host(in.Key)
	}
	h := at.host.Load()
	if h == nil {
		h = p.host(in.Key)
		at.host.Store(h)
	}
	if h.seen.Load() != in && h.key != in.Key {
		return p.host(in.Key)
	}
	return h
}

// leave forgets a host that is gone.
func (at *Place) leave(h *host) {
	if at != nil {
		at.host.CompareAndSwap(h, nil)
	}
}

// plain tells that a request goes over TCP as it is.
func (r *Request) plain() bool {
	if r.Place != nil {
		if h := r.Place.host.Load(); h != nil && h.seen.Load() == r.Instance {
			return true
		}
	}
	return !secure(r.Instance)
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
		h = &host{key: k}
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

// reuse gives the connection that was used last, if it is young enough and the
// peer has neither closed it nor sent anything since; unseen leaves that last
// look to the exchange. It is never left out: bytes that nobody asked for would
// become the next client's answer. now may be zero, for not known. nil means dial.
func (p *Pool) reuse(h *host, now time.Time, unseen bool) *conn {
	clock := now.Sub(p.begun)
	if now.IsZero() {
		clock = p.now()
	}
	oldest := clock - p.opts.IdleTimeout
	for {
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
		if unseen || c.peek() == nothing {
			return c
		}
		c.close()
	}
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
