package engine

import "sync/atomic"

// hold stops a core between two steps. Its zero value lets the core run.
type hold struct {
	resumed atomic.Pointer[chan struct{}] // closed when the core runs again; nil: it runs
}

// Hold stops the core, or lets it run again. While it is stopped no request of it makes
// progress. Requests still arrive, and those whose clients leave are dropped.
func (c *Core) Hold(on bool) {
	if on {
		ch := make(chan struct{})
		c.hold.resumed.CompareAndSwap(nil, &ch)
		return
	}
	if ch := c.hold.resumed.Swap(nil); ch != nil {
		close(*ch)
	}
}

// Held reports whether the core is stopped.
func (c *Core) Held() bool { return c.hold.resumed.Load() != nil }

// step blocks while the core is stopped; false means that the client left or the engine died.
func (r *Request) step() bool {
	for {
		ch := r.Core.hold.resumed.Load()
		if ch == nil {
			return true
		}
		if !r.Life.await(*ch) {
			return false
		}
	}
}
