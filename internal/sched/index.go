package sched

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// indexer makes the index of each snapshot and keeps the newest.
type indexer struct {
	opts   *Options
	loads  *Loads
	chains map[instance.Role][]chainPolicy

	inUse    atomic.Pointer[index]
	prepared atomic.Pointer[index] // prepared, perhaps for a snapshot that is not out yet
	// building keeps several requests from building the same index; only the first
	// requests of all wait for it.
	building sync.Mutex
	built    *index         // built last; guarded by building
	models   map[string]int // entries of last that list each model; guarded by building
}

// index is what one snapshot means for picking. Its lists are built once
// when the membership changed, and never change afterwards. What a change of
// the membership does not concern is shared with the index before.
type index struct {
	snapshot        *instance.Snapshot
	prefill, decode *roleIndex
}

func (ix *index) role(r instance.Role) *roleIndex {
	if r == instance.Prefill {
		return ix.prefill
	}
	return ix.decode
}

type roleIndex struct {
	all *candidates // of every model: for requests that name none

	byModel map[string]*candidates
	// pairKeys counts the instances by what decides their partners.
	pairKeys map[pairKey]int
	// alike tells that there is one such half, of all.
	alike bool
	only  pairKey

	newList func() *candidates
}

// pairKey is what of an instance decides its partners.
type pairKey struct {
	connector string
	build     string // what both must have in common, "" for one that goes with anybody
	blocks    int    // likewise, 0
}

// canPair tells whether two instances can serve a request together.
func canPair(prefill, decode pairKey) bool {
	return mismatch(prefill, decode) == nil
}

// mismatch is why two instances cannot serve a request together, nil if they can.
func mismatch(a, b pairKey) error {
	switch {
	case a.connector != b.connector:
		return ErrConnectors
	case a.build != b.build && a.build != "" && b.build != "":
		return ErrVersions
	case a.blocks != b.blocks && a.blocks != 0 && b.blocks != 0:
		return ErrBlocks
	default:
		return nil
	}
}

// canPair tells whether an instance of the wanted role can go with one of the other.
func (r *Request) canPair(own, partner pairKey) bool {
	if r.Role == instance.Prefill {
		return canPair(own, partner)
	}
	return canPair(partner, own)
}

// canPairWith tells whether a decode instance of the index can go with a prefill instance. itself
// tells that one of those that could is its own engine, which does not count.
func (ri *roleIndex) canPairWith(prefill pairKey, itself bool) bool {
	if ri.alike && !itself {
		return canPair(prefill, ri.only)
	}
	n := 0
	for h, many := range ri.pairKeys {
		if canPair(prefill, h) {
			n += many
		}
	}
	return n > 1 || n == 1 && !itself
}

// candidates are in the order of addresses, each once for each of its ranks, in their
// order. With its weight 0 an instance is none.
type candidates struct {
	items    []policy.Candidate
	facts    []facts           // what policies need not know of each
	whole    policy.Candidates // all items
	slow     int               // how many of them are slow
	both     int               // how many of them stand in the other role, too
	zones    int               // how many of them say where they are
	policies []listPolicy      // asked one after the other until one chooses
}

// facts is what the scheduler knows of a candidate beside what policies see.
type facts struct {
	counter *counter
	pairKey pairKey
	slow    bool // see instance.Slow: picked only while no other can be
	both    bool // its engine is a candidate of the other role, too
	zone    string
}

// candidate is one of a list with both.
type candidate struct {
	policy.Candidate
	facts
}

// listPolicy is a policy of one list.
type listPolicy struct {
	chainPolicy
	policy.Policy
	memory *policy.Memory
}

// newList makes the empty list of a role, with policies of its own.
func (x *indexer) newList(role instance.Role) *candidates {
	c := &candidates{whole: policy.All(nil)}
	for _, l := range x.chains[role] {
		memory := new(policy.Memory)
		o := policy.Options{
			Rand: x.opts.Rand, Start: x.opts.Start, CacheWeight: x.opts.CacheWeight, Caches: x.opts.Caches, Memory: memory, Placements: x.opts.Placements,
		}
		c.policies = append(c.policies, listPolicy{l, l.New(o), memory})
	}
	return c
}

// withItems gives the list with other items, and the policies as they are: a change of
// the membership does not send everything to the first instance again.
func (c *candidates) withItems(items []policy.Candidate, own []facts) *candidates {
	next := &candidates{items: items, facts: own, whole: policy.All(items), policies: c.policies}
	for i := range own {
		if own[i].slow {
			next.slow++
		}
		if own[i].both {
			next.both++
		}
		if own[i].zone != "" {
			next.zones++
		}
	}
	return next
}

// place is where the first rank of an address stands in a list, or would; the others
// stand behind it.
func place(items []policy.Candidate, address string) (at int, found bool) {
	return slices.BinarySearchFunc(items, address, func(c policy.Candidate, a string) int { return strings.Compare(c.Instance.Address, a) })
}

// current gives the index of the current snapshot, or at worst that of the one before.
func (x *indexer) current() *index {
	snap := x.opts.Source.Snapshot()
	old := x.inUse.Load()
	if old != nil && old.snapshot == snap {
		return old
	}
	if next := x.prepared.Load(); next != nil && next.snapshot == snap && x.inUse.CompareAndSwap(old, next) {
		return next
	}
	// It is not prepared. One request builds the new index; the others go on with the old one, a
	// few milliseconds behind at worst, rather than wait for it.
	if old != nil && !x.building.TryLock() {
		return old
	} else if old == nil {
		x.building.Lock()
	}
	defer x.building.Unlock()
	return x.rebuild()
}

// newest is current for callers that must not go on with an old one.
func (x *indexer) newest() *index {
	x.building.Lock()
	defer x.building.Unlock()
	return x.rebuild()
}

// rebuild gives the index of the current snapshot. The lock is held.
func (x *indexer) rebuild() *index {
	snap, old := x.opts.Source.Snapshot(), x.inUse.Load()
	if old != nil && old.snapshot == snap {
		return old
	}
	if next := x.prepared.Load(); next != nil && next.snapshot == snap {
		x.inUse.Store(next)
		return next
	}
	ix := x.build(snap)
	x.inUse.Store(ix)
	return ix
}

// prepare builds what picks need of a snapshot that is about to be published,
// so that no request has to. It is called before the source gives the snapshot
// out, by its publisher.
func (x *indexer) prepare(snap *instance.Snapshot) {
	x.building.Lock()
	defer x.building.Unlock()
	// What was prepared last may not have been picked from yet.
	if next := x.prepared.Load(); next != nil && next.snapshot == x.opts.Source.Snapshot() {
		x.inUse.Store(next)
	}
	x.prepared.Store(x.build(snap))
}

// candidates finds the list for a model; known is false for a model that
// no instance lists.
func (ix *index) candidates(role instance.Role, model string) (list *candidates, known bool) {
	ri := ix.role(role)
	if model == "" {
		return ri.all, true
	}
	if list = ri.byModel[model]; list != nil {
		return list, true
	}
	// Before anything is known, nothing is unknown.
	return ri.all, len(ix.snapshot.All()) == 0
}
