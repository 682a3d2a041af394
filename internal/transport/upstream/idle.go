package upstream

import (
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxIdle bounds the number of idle connections to one instance.
const maxIdle = 1024

// host holds the idle connections to one instance. An engine in both roles has two
// hosts, since its two records may have different incarnations.
type host struct {
	mu          sync.Mutex // guards the fields below, and conn.idleSince of idle
	idle        []*conn    // in the order of their last use
	incarnation string
	// generation counts incarnations and calls of Forget: connections of an earlier
	// generation are not reused.
	generation uint64
	active     int32 // exchanges that may return a connection
}

// dropIdle empties the idle list and returns its connections, which the caller closes
// after it has released mu.
func (h *host) dropIdle() []*conn {
	toClose := h.idle
	h.idle = nil
	return toClose
}

// activeHost returns the host of an instance and counts the caller as active there, so that sweep
// keeps it. The caller must close the connections in toClose, which are to an earlier incarnation.
func (p *Pool) activeHost(in *instance.Instance) (h *host, toClose []*conn) {
	current := in.Incarnation()
	p.mu.Lock()
	defer p.mu.Unlock()
	if h = p.hosts[in.Key]; h == nil {
		h = &host{}
		p.hosts[in.Key] = h
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active++
	if current != h.incarnation {
		h.incarnation = current
		h.generation++
		toClose = h.dropIdle()
	}
	return h, toClose
}

func isHTTPS(in *instance.Instance) bool { return in.Record.Scheme == "https" }

// popIdle returns the most recently used connection, or nil if all have been idle for too
// long at that time. The exchange must check that the peer has neither closed it nor sent
// anything since: unsolicited bytes would be read as the response to the next client
// (TestIdleConnection_Checked).
func (p *Pool) popIdle(h *host, at time.Time) (c *conn) {
	oldest := at.Sub(p.started) - p.opts.IdleTimeout
	var toClose []*conn
	h.mu.Lock()
	switch n := len(h.idle) - 1; {
	case n < 0:
	case h.idle[n].idleSince < oldest: // and so are all others, which were used before it
		toClose = h.dropIdle()
	default:
		c, h.idle[n] = h.idle[n], nil
		h.idle = h.idle[:n]
		c.reused = true
	}
	h.mu.Unlock()
	closeAll(toClose)
	return c
}

// release ends an exchange on c. It puts the connection on the idle list or closes it.
func (p *Pool) release(c *conn, reusable bool) {
	h := c.host
	h.mu.Lock()
	h.active--
	reusable = reusable && c.generation == h.generation && len(h.idle) < maxIdle && !p.closed.Load()
	if reusable {
		c.idleSince = p.now()
		h.idle = append(h.idle, c)
	}
	h.mu.Unlock()
	switch {
	case !reusable:
		c.close()
	case !p.sweeping.Load() && p.sweeping.CompareAndSwap(false, true):
		p.sweeper.Reset(p.sweepEvery())
	}
}

// now returns the time since the pool was created.
func (p *Pool) now() time.Duration { return time.Since(p.started) }

func (p *Pool) sweepEvery() time.Duration { return max(p.opts.IdleTimeout/8, time.Millisecond) }

// sweep closes the connections that have been idle for too long, and removes hosts without
// a connection. It runs on a timer that is set only while a connection is idle.
func (p *Pool) sweep() {
	p.sweeping.Store(false) // before the scan: a release from now on sets the timer again
	oldest := p.now() - p.opts.IdleTimeout
	var toClose []*conn
	anyIdle := false
	p.mu.Lock()
	for k, h := range p.hosts {
		h.mu.Lock()
		n := 0
		for n < len(h.idle) && h.idle[n].idleSince < oldest {
			n++
		}
		toClose = append(toClose, h.idle[:n]...)
		h.idle = slices.Delete(h.idle, 0, n)
		if len(h.idle) > 0 {
			anyIdle = true
		} else if h.active == 0 {
			delete(p.hosts, k)
		}
		h.mu.Unlock()
	}
	if anyIdle && !p.closed.Load() && p.sweeping.CompareAndSwap(false, true) {
		p.sweeper.Reset(p.sweepEvery())
	}
	p.mu.Unlock()
	closeAll(toClose)
}

// Forget closes the idle connections to an address, in any role. Running exchanges
// close their connections when they end.
func (p *Pool) Forget(address string) {
	p.closeIdle(func(k instance.Key) bool { return k.Address == address })
	p.https.Forget(address)
}

func (p *Pool) closeIdle(match func(instance.Key) bool) {
	var toClose []*conn
	p.mu.Lock()
	for k, h := range p.hosts {
		if match(k) {
			h.mu.Lock()
			h.generation++
			toClose = append(toClose, h.dropIdle()...)
			h.mu.Unlock()
		}
	}
	p.mu.Unlock()
	closeAll(toClose)
}

func closeAll(list []*conn) {
	for _, c := range list {
		c.close()
	}
}
