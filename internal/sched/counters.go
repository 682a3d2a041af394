package sched

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// counter is what is known of one instance beside the snapshots. All that a leg
// needs of it is in one line of the processor's caches, of which no other
// instance's counter has a part.
type counter struct {
	load    policy.Load
	heard   atomic.Uint64 // signs of life that legs saw
	waiting waiting
	// now is the entry of the snapshot that was built last; nil if it has none.
	now     atomic.Pointer[instance.Instance]
	present int // memberships of the key in that snapshot; guarded by counters.mu
}

// counters live beside the snapshots, so that a membership change loses no count.
type counters struct {
	mu      sync.RWMutex // guards all below; taken at index building and by readers of metrics, never by Pick
	m       map[instance.Key]*counter
	leaving []instance.Key // gone, and not let go of yet
}

func (c *counters) find(k instance.Key) (*counter, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n, ok := c.m[k]
	return n, ok
}

func (c *counters) each(f func(instance.Key, int64)) {
	c.eachCounter(func(k instance.Key, n *counter) { f(k, n.load.InFlight.Load()) })
}

func (c *counters) eachCounter(f func(instance.Key, *counter)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for k, n := range c.m {
		if n.present > 0 || n.load.InFlight.Load() != 0 {
			f(k, n)
		}
	}
}

// keep makes sure that every instance has a counter. It gives that of each
// change, nil for a pending add and for what went.
func (c *counters) keep(changes []change) []*counter {
	out := make([]*counter, len(changes))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = make(map[instance.Key]*counter, len(changes))
	}
	c.letGo()
	for i, ch := range changes {
		was, is := ch.was, ch.is
		if was != nil && was.View == instance.Pending || is != nil && is.View == instance.Pending {
			continue
		}
		if is == nil {
			n := c.m[was.Key]
			n.present--
			n.now.CompareAndSwap(was, nil)
			c.leaving = append(c.leaving, was.Key)
			continue
		}
		n := c.m[is.Key]
		if n == nil {
			n = new(counter)
			c.m[is.Key] = n
		}
		if was == nil {
			n.present++
		}
		n.now.Store(is)
		out[i] = n
	}
	return out
}

// letGo lets go of the counters of instances that are gone and idle. It is not
// done at once when an instance goes: until the snapshot without it is out, it
// may still be picked, and its counter be needed. The lock is held.
func (c *counters) letGo() {
	c.leaving = slices.DeleteFunc(c.leaving, func(k instance.Key) bool {
		switch n := c.m[k]; {
		case n == nil, n.present > 0:
			return true
		case n.load.InFlight.Load() == 0:
			delete(c.m, k)
			return true
		default:
			return false
		}
	})
}
