package sched

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// counter is what is known of one instance beside the snapshots. All that a leg
// needs of it is in one line of the processor's caches, of which no other
// instance's counter has a part. Of an instance with data-parallel ranks it is the
// whole's, but for the load, which is that of the first rank.
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
	// more are the loads of the other ranks of instances that have or had some. They
	// stay as long as the counter does.
	more map[instance.Key][]*rankLoad
}

// rankLoad is the load of a rank that is not its instance's first: one line, as a
// counter.
type rankLoad struct {
	policy.Load
	_ [cacheLine - unsafe.Sizeof(policy.Load{})%cacheLine]byte
}

const cacheLine = 64

// ranks gives the loads of all ranks of an instance but the first, which is that of its
// counter.
func (c *counters) ranks(k instance.Key, n int) []*policy.Load {
	if n <= 1 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more == nil {
		c.more = map[instance.Key][]*rankLoad{}
	}
	for len(c.more[k]) < n-1 {
		c.more[k] = append(c.more[k], new(rankLoad))
	}
	out := make([]*policy.Load, n-1)
	for i := range out {
		out[i] = &c.more[k][i].Load
	}
	return out
}

// inFlight is what all ranks of an instance hold. The lock is held.
func (c *counters) inFlight(k instance.Key, n *counter) int64 {
	sum := n.load.InFlight.Load()
	for _, l := range c.more[k] {
		sum += l.InFlight.Load()
	}
	return sum
}

// load is what the ranks of an instance hold, each; none if it is not known.
func (c *counters) load(k instance.Key, ranks int) []int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n, ok := c.m[k]
	if !ok {
		return nil
	}
	out := []int64{n.load.InFlight.Load()}
	for i, l := range c.more[k] {
		if i+1 < ranks {
			out = append(out, l.InFlight.Load())
		}
	}
	return out
}

func (c *counters) find(k instance.Key) (*counter, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n, ok := c.m[k]
	return n, ok
}

func (c *counters) each(f func(instance.Key, int64)) {
	c.eachCounter(func(k instance.Key, _ *counter, inFlight int64) { f(k, inFlight) })
}

func (c *counters) eachCounter(f func(instance.Key, *counter, int64)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for k, n := range c.m {
		if inFlight := c.inFlight(k, n); n.present > 0 || inFlight != 0 {
			f(k, n, inFlight)
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
		case c.inFlight(k, n) == 0:
			delete(c.m, k)
			delete(c.more, k)
			return true
		default:
			return false
		}
	})
}
