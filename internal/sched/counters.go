package sched

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// counter is what is known of one engine beside the snapshots. One that stands in both
// roles has one: what it does as a prefill instance is load of the decode instance, too.
// It is two lines of the processor's caches, of which no other engine's counter has a
// part. What legs change is in the first, with all that the usual policies look at; the
// second changes about once a second. Of an engine with data-parallel ranks it is the
// whole's, but for the load, which is that of the first rank.
type counter struct {
	heard   atomic.Uint64 // signs of life that legs saw
	waiting waiting
	load    policy.Load
	// entries are the entries of the snapshot that was built last, by role; nil: none.
	entries [2]atomic.Pointer[instance.Instance]
	hits    *hits // of its cache
}

// entry is the entry of a role.
func (n *counter) entry(role instance.Role) *atomic.Pointer[instance.Instance] {
	return &n.entries[roleNumber(role)]
}

// roleNumber is the place of a role where each has one.
func roleNumber(role instance.Role) int {
	if role == instance.Prefill {
		return 0
	}
	return 1
}

// engine is a counter and in which roles it is counted.
type engine struct {
	*counter
	otherRanks []*rankLoad    // the loads of its other ranks, if it has or had some
	report     *policy.Engine // what it says of itself; nil: nothing, or that is too old
	present    [2]int         // memberships of each role in the snapshot that was built last
	hadRole    [2]bool        // it has stood in that role
}

func (e *engine) gone() bool { return e.present == [2]int{} }

// inFlight is what all its ranks hold.
func (e *engine) inFlight() int64 {
	sum := e.load.InFlight.Load()
	for _, l := range e.otherRanks {
		sum += l.InFlight.Load()
	}
	return sum
}

// counters live beside the snapshots, so that a membership change loses no count. They
// are found by address.
type counters struct {
	mu      sync.RWMutex // guards all below; taken at index building and by readers of metrics, never by Pick
	m       map[string]*engine
	leaving []string // gone, and not let go of yet
}

// rankLoad is the load of a rank that is not its instance's first: whole lines, as a
// counter.
type rankLoad struct {
	policy.Load
	_ [cacheLine - unsafe.Sizeof(policy.Load{})%cacheLine]byte
}

const cacheLine = 64

// ranks gives the loads of all ranks of an instance but the first, which is that of its
// counter.
func (c *counters) ranks(address string, n int) []*policy.Load {
	if n <= 1 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[address]
	if e == nil { // it has just been let go of
		e = &engine{}
	}
	for len(e.otherRanks) < n-1 {
		e.otherRanks = append(e.otherRanks, new(rankLoad))
	}
	out := make([]*policy.Load, n-1)
	for i := range out {
		out[i] = &e.otherRanks[i].Load
	}
	return out
}

// load is what the ranks of an instance hold, each; none if it is not known.
func (c *counters) load(address string, ranks int) []int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.m[address]
	if !ok {
		return nil
	}
	out := []int64{e.load.InFlight.Load()}
	for i, l := range e.otherRanks {
		if i+1 < ranks {
			out = append(out, l.InFlight.Load())
		}
	}
	return out
}

// inFlight is what all ranks of an engine hold, 0 if it is not known.
func (c *counters) inFlight(address string) int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e, ok := c.m[address]; ok {
		return e.inFlight()
	}
	return 0
}

func (c *counters) find(address string) (*counter, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e, ok := c.m[address]; ok {
		return e.counter, true
	}
	return nil, false
}

// each calls f for every membership with what its engine has in flight, in whatever role.
func (c *counters) each(f func(instance.Key, int64)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for address, e := range c.m {
		n := e.inFlight()
		for _, role := range instance.Roles() {
			if at := roleNumber(role); e.present[at] > 0 || e.gone() && n != 0 && e.hadRole[at] {
				f(instance.Key{Role: role, Address: address}, n)
			}
		}
	}
}

// busy lists the counters of engines that have something in flight.
func (c *counters) busy() []*counter {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []*counter
	for _, e := range c.m {
		if e.inFlight() > 0 {
			out = append(out, e.counter)
		}
	}
	return out
}

// update makes sure that every instance has a counter. It gives that of each
// change, nil for a pending add and for what went.
func (c *counters) update(changes []change) []*counter {
	out := make([]*counter, len(changes))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = make(map[string]*engine, len(changes))
	}
	c.dropIdle()
	for i, ch := range changes {
		was, is := ch.was, ch.is
		if was != nil && was.View == instance.Pending || is != nil && is.View == instance.Pending {
			continue
		}
		if is == nil {
			e := c.m[was.Address]
			e.present[roleNumber(was.Role)]--
			e.entry(was.Role).CompareAndSwap(was, nil)
			if e.gone() {
				c.leaving = append(c.leaving, was.Address)
			}
			continue
		}
		e := c.m[is.Address]
		if e == nil {
			e = &engine{counter: &counter{hits: new(hits)}}
			c.m[is.Address] = e
		}
		if was == nil {
			e.present[roleNumber(is.Role)]++
		}
		e.hadRole[roleNumber(is.Role)] = true
		e.entry(is.Role).Store(is)
		out[i] = e.counter
	}
	return out
}

// letGo lets go of the counters of instances that are gone and idle. It is not
// done at once when an instance goes: until the snapshot without it is out, it
// may still be picked, and its counter be needed. The lock is held.
func (c *counters) dropIdle() {
	c.leaving = slices.DeleteFunc(c.leaving, func(address string) bool {
		switch e := c.m[address]; {
		case e == nil, !e.gone():
			return true
		case e.inFlight() == 0:
			delete(c.m, address)
			return true
		default:
			return false
		}
	})
}
