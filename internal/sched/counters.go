package sched

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// counter is the state of one engine that outlives snapshots. An engine in both roles has one counter, since
// its prefill work is load of its decode instance, too. A counter fills two cache lines: legs and the usual
// policies use the first; the second changes about once a second. For an engine with data-parallel ranks,
// load is that of the first rank.
type counter struct {
	progress atomic.Uint64 // calls of NoteProgress
	waiting  waiting
	load     policy.Load
	// entries are the engine's instances in the snapshot of the newest index, by role; nil: none.
	entries [2]atomic.Pointer[instance.Instance]
	hits    *hits // prefix cache hits, picks and legs by role
}

// entry returns the slot of the engine's instance in a role.
func (n *counter) entry(role instance.Role) *atomic.Pointer[instance.Instance] {
	return &n.entries[role.Index()]
}

// engine is a counter and the roles of its engine.
type engine struct {
	*counter
	otherRanks []*rankLoad    // the loads of its ranks but the first, including former ranks
	report     *policy.Engine // its last report; nil: there is none, or it is too old
	present    [2]int         // number of its entries of each role in the snapshot of the newest index
	hadRole    [2]bool        // roles that it has ever had
}

func (e *engine) absent() bool { return e.present == [2]int{} }

// ranks returns the number of ranks of its instances in the snapshot of the newest index.
func (e *engine) ranks() int {
	n := 1
	for i := range e.entries {
		if in := e.entries[i].Load(); in != nil {
			n = max(n, in.Ranks())
		}
	}
	return n
}

// loads returns the load of each rank that the engine has or had.
func (e *engine) loads() iter.Seq2[int, *policy.Load] {
	return func(yield func(rank int, l *policy.Load) bool) {
		if !yield(0, &e.load) {
			return
		}
		for i, l := range e.otherRanks {
			if !yield(i+1, &l.Load) {
				return
			}
		}
	}
}

// inFlight returns the number of legs on all ranks.
func (e *engine) inFlight() (sum int64) {
	for _, l := range e.loads() {
		sum += l.InFlight.Load()
	}
	return sum
}

// counters has the counters by address. They outlive snapshots, so that a change of the membership loses no
// count.
type counters struct {
	mu      sync.RWMutex // guards all below; held by index building and readers of metrics, never by Pick
	m       map[string]*engine
	leaving []string // addresses of absent engines whose counters are not dropped yet
}

// rankLoad is the load of a rank other than the first of its instance. Like a counter, it fills whole cache
// lines.
type rankLoad struct {
	policy.Load
	_ [cacheLine - unsafe.Sizeof(policy.Load{})%cacheLine]byte
}

const cacheLine = 64

// ranks returns the loads of all ranks of an instance but the first, whose load is in its counter.
func (c *counters) ranks(address string, n int) []*policy.Load {
	if n <= 1 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[address]
	if e == nil { // dropped just now
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

func (c *counters) find(address string) (*counter, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e, ok := c.m[address]; ok {
		return e.counter, true
	}
	return nil, false
}

// busy returns the counters of engines with legs in flight.
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

// update assigns a counter to every instance of snap that is not pending. last is the snapshot of the
// last call, nil at first.
func (c *counters) update(last, snap *instance.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = make(map[string]*engine, len(snap.All()))
	}
	c.dropIdle()
	instance.Changes(last, snap, func(was, is *instance.Instance) {
		if was != nil && was.View == instance.Pending || is != nil && is.View == instance.Pending {
			return
		}
		if is == nil {
			e := c.m[was.Address]
			e.present[was.Role.Index()]--
			e.entry(was.Role).CompareAndSwap(was, nil)
			if e.absent() {
				c.leaving = append(c.leaving, was.Address)
			}
			return
		}
		e := c.m[is.Address]
		if e == nil {
			e = &engine{counter: &counter{hits: new(hits)}}
			c.m[is.Address] = e
		}
		if was == nil {
			e.present[is.Role.Index()]++
		}
		e.hadRole[is.Role.Index()] = true
		e.entry(is.Role).Store(is)
	})
}

// dropIdle drops the counters of absent engines without legs. A counter outlives its engine for a while:
// picks may need it until the snapshot without the engine is published. A pick from an even older index
// notices that the counter has no entry (see stillPickable). The caller holds mu.
func (c *counters) dropIdle() {
	c.leaving = slices.DeleteFunc(c.leaving, func(address string) bool {
		switch e := c.m[address]; {
		case e == nil, !e.absent():
			return true
		case e.inFlight() == 0:
			delete(c.m, address)
			return true
		default:
			return false
		}
	})
}
