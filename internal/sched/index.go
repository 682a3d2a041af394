package sched

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// indexer makes the index of each snapshot and keeps the newest.
type indexer struct {
	opts   *Options
	loads  *Loads
	chains map[instance.Role][]policy.Kind

	// latest are the one that picks use, and the one that was built last, perhaps for a snapshot
	// that is not published yet; nil: there is none.
	latest atomic.Pointer[[2]*index]
	// building keeps several requests from building the same index. A pick waits for it
	// only while there is no index at all, or to be made again from the newest one.
	building sync.Mutex
}

// index is what one snapshot means for picking. Its lists are built once, when the
// membership has changed, and never change afterwards. Lists that a change does not concern are
// shared with the previous index.
type index struct {
	snapshot        *instance.Snapshot
	prefill, decode *roleIndex
	models          []string // all that instances list, usable or not, in the order of the instances
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
	// pairKeys counts the instances with each PairKey.
	pairKeys map[connector.PairKey]int
	// alike reports whether all instances have the same PairKey, which is only.
	alike bool
	only  connector.PairKey
}

// canPair reports whether instances with these keys can serve a request together.
func canPair(a, b connector.PairKey) bool { return a.Mismatch(b) == "" }

// canPairWith reports whether a decode instance of the index can be paired with a prefill
// instance. itself reports whether one of those that could is the same engine, which does not
// count.
func (ri *roleIndex) canPairWith(prefill connector.PairKey, itself bool) bool {
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

// candidates is a list in the order of addresses. An instance is in it once for each of its
// ranks, in their order, and not at all if its weight is 0.
type candidates struct {
	items    []policy.Candidate
	facts    []facts           // of each item, what policies need not know
	whole    policy.Candidates // all items
	slow     int               // how many of them are slow
	both     int               // how many of them are in the other role, too
	zones    int               // how many of them have a zone
	policies []listPolicy      // asked in this order until one chooses
}

// facts are the properties of a candidate that policies do not see.
type facts struct {
	counter *counter
	pairKey connector.PairKey
	slow    bool // see instance.Slow: picked only while no other can be
	both    bool // its engine is a candidate of the other role, too
	zone    string
}

// listPolicy is a policy that chooses from one list.
type listPolicy struct {
	policy.Kind
	policy.Policy
}

// newPolicies returns the policies of a new list of a role.
func (x *indexer) newPolicies(role instance.Role) (out []listPolicy) {
	for _, k := range x.chains[role] {
		out = append(out, listPolicy{k, k.New(x.opts.Options)})
	}
	return out
}

// place is the place of an address's first rank in a list, or where it would be; its other
// ranks follow.
func place(items []policy.Candidate, address string) (at int, found bool) {
	return slices.BinarySearchFunc(items, address, func(c policy.Candidate, a string) int { return strings.Compare(c.Instance.Address, a) })
}

// current returns the index of the current snapshot, or, while that is built, an older one.
func (x *indexer) current() *index {
	ix, ready := x.find(x.opts.Source.Snapshot())
	if ready {
		return ix
	}
	// The index is not prepared. One request builds it; the others do not wait for it,
	// but use the old one, which is a few milliseconds old at most.
	if ix == nil {
		x.building.Lock()
	} else if !x.building.TryLock() {
		return ix
	}
	defer x.building.Unlock()
	return x.rebuild()
}

// newest is current for callers that must not use an old index. It does not wait for prepare
// unless the current snapshot was published without it.
func (x *indexer) newest() *index {
	if ix, ready := x.find(x.opts.Source.Snapshot()); ready {
		return ix
	}
	x.building.Lock()
	defer x.building.Unlock()
	return x.rebuild()
}

// rebuild returns the index of the current snapshot. The lock is held.
func (x *indexer) rebuild() *index {
	snap := x.opts.Source.Snapshot()
	ix, ready := x.find(snap)
	if !ready {
		ix = x.build(snap)
		x.latest.Store(&[2]*index{ix, ix})
	}
	return ix
}

// find returns the index of a snapshot. If it is not ready, find returns the one that picks used
// until now, nil if there is none.
func (x *indexer) find(snap *instance.Snapshot) (ix *index, ready bool) {
	latest := x.latest.Load()
	if latest == nil {
		return nil, false
	}
	for _, ix := range latest {
		if ix.snapshot == snap {
			return ix, true
		}
	}
	return latest[0], false
}

// prepare builds the index of a snapshot that is about to be published, so that no request
// has to. The publisher calls it before the source returns the snapshot.
func (x *indexer) prepare(snap *instance.Snapshot) {
	x.building.Lock()
	defer x.building.Unlock()
	used, _ := x.find(x.opts.Source.Snapshot())
	next := x.build(snap)
	x.latest.Store(&[2]*index{cmp.Or(used, next), next})
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
	// Before the first membership is read, no model counts as unknown.
	return ri.all, len(ix.snapshot.All()) == 0
}
