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

// indexer builds the index of each snapshot and keeps the newest.
type indexer struct {
	opts   *Options
	loads  *Loads
	chains map[instance.Role][]policy.Kind

	// latest are the index that picks use and the index built last, perhaps for a snapshot that is not
	// published yet; nil before the first.
	latest atomic.Pointer[[2]*index]
	// building keeps several requests from building the same index. A pick waits for it only if there is no
	// index yet, or if the pick must be repeated with the newest one.
	building sync.Mutex
}

// index has the candidates of one snapshot. Its lists are built once, after a change of the membership, and
// never change afterwards. Lists that a change does not affect are shared with the previous index.
type index struct {
	snapshot        *instance.Snapshot
	prefill, decode *roleIndex
	models          []string // all listed models, usable or not, in the order of the instances
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
	// alike reports whether all instances have the same PairKey, which is then in only.
	alike bool
	only  connector.PairKey
}

// canPair reports whether instances with these keys can serve a request together.
func canPair(a, b connector.PairKey) bool { return a.Mismatch(b) == "" }

// canPairWith reports whether a decode instance of the index can be paired with a prefill instance. itself
// reports whether one of those that could is the same engine, which does not count.
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

// candidates is a list sorted by address. An instance is in it once for each of its ranks, in their order,
// and not at all if its weight is 0.
type candidates struct {
	items    []policy.Candidate
	facts    []facts           // of each item
	all      policy.Candidates // all items
	slow     int               // number of slow items
	both     int               // number of items in the other role, too
	zones    int               // number of items with a zone
	policies []listPolicy      // tried in this order until one chooses
}

// facts are the properties of a candidate that policies do not see.
type facts struct {
	counter *counter
	pairKey connector.PairKey
	slow    bool // see instance.Slow: picked only if no other can be
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

// place returns the position of an address's first rank in a list, or its insertion point. The other ranks
// follow.
func place(items []policy.Candidate, address string) (at int, found bool) {
	return slices.BinarySearchFunc(items, address, func(c policy.Candidate, a string) int { return strings.Compare(c.Instance.Address, a) })
}

// current returns the index of the current snapshot, or an older one while that is being built.
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

// newest is like current, but never returns an older index. It takes the lock only if the current snapshot
// was published without prepare.
func (x *indexer) newest() *index {
	if ix, ready := x.find(x.opts.Source.Snapshot()); ready {
		return ix
	}
	x.building.Lock()
	defer x.building.Unlock()
	return x.rebuild()
}

// rebuild returns the index of the current snapshot. The caller holds building.
func (x *indexer) rebuild() *index {
	snap := x.opts.Source.Snapshot()
	ix, ready := x.find(snap)
	if !ready {
		ix = x.build(snap)
		x.latest.Store(&[2]*index{ix, ix})
	}
	return ix
}

// find returns the index of a snapshot. If that is not ready, it returns the one that picks used last; nil if
// there is none.
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

// candidates returns the list for a model; known is false if no instance lists the model.
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

// Usable returns the candidates of a role that a request for a model with these labels could get now; none if
// no instance lists the model. With PrefillOptional, unreachable and slow prefill instances are omitted: if
// there is no other, requests are decode-only.
func (s *Scheduler) Usable(role instance.Role, model string, labels instance.Selector) []policy.Candidate {
	ix := s.index.current()
	list, known := ix.candidates(role, model)
	if !known {
		return nil
	}
	among, l := s.filter.admitted(ix, list, &Request{Role: role, Model: model, Labels: labels, Unpaired: true})
	optional := s.filter.opts.PrefillOptional && role == instance.Prefill
	out := make([]policy.Candidate, 0, among.Len())
	for i := range among.Len() {
		at := among.Index(i)
		if c := list.items[at]; !optional || !list.facts[at].slow && !s.filter.opts.Health.Unreachable(c.Instance.Key) {
			out = append(out, c)
		}
	}
	if l != nil {
		s.filter.scratches.Put(l)
	}
	return out
}

// Tokens estimates the number of tokens in a prompt of the given length in bytes.
func (s *Scheduler) Tokens(model string, bytes int) int { return s.ratios.of(model).tokens(bytes) }
