package prefix

import (
	"math"
	"slices"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
)

// Index records, for each target, up to which border it has computed the prompts sent to it. A target is an
// instance, or one of its ranks. An Index evicts the excess over the capacity of a target, least recently
// used parts first, as engines do, and the end of a prompt before its beginning. Evict does the same when the
// memory limit of all indexes is reached.
//
// Prompts form a radix tree. A node is the text between two positions at which prompts diverge, so even a
// long prompt takes few steps. NewIndex creates an Index. It is not safe for concurrent use.
type Index struct {
	root     branches
	remote   remote
	targets  []*target // nil: the number is free
	borders  int       // of all targets
	memory   *indexmem.Budget
	bytes    int      // memory of nodes and of other proxies' prompts
	reported int      // part of bytes already reported to memory
	steps    []passed // of walk
}

// branches has the nodes that follow a position, by their first border.
type branches map[Key]*node

// node is the text between two positions.
type node struct {
	keys   []Key // its borders, at least one
	depth  int32 // number of borders before them
	bytes  int32 // of memory, as counted in Index.bytes
	parent *node // nil for those of the root
	next   branches
	// forked reports whether prompts diverged after the node, even if one of them was evicted since.
	forked bool
	// holders has every target that holds a part of the node, ordered by number. Such a target holds all of
	// the node's parent.
	holders []holder
	// Memory for the first holder: most nodes belong to one chat, on one instance.
	firstHolder [1]holder
	firstUse    use
}

// holder is the number of borders of a node that a target holds, with the entry in its LRU list.
type holder struct {
	target  int
	borders int
	use     *use
}

// passed is a node on the path of a prompt, and the number of borders that both have. Only the last node of a
// path may have borders that the prompt lacks.
type passed struct {
	node *node
	same int
}

// Estimated bytes of the map entries of a node.
const (
	slotBytes   = 32  // in the branches of its parent
	branchBytes = 190 // its own branches, if it has any
)

// NewIndex returns an Index that reports its memory to a Budget.
func NewIndex(memory *indexmem.Budget) *Index {
	return &Index{root: branches{}, remote: remote{}, memory: memory}
}

// size estimates the memory of a node in bytes.
func (n *node) size() int {
	bytes := int(unsafe.Sizeof(*n)) + slotBytes + cap(n.keys)*int(unsafe.Sizeof(Key(0)))
	if n.next != nil {
		bytes += branchBytes
	}
	if len(n.holders) > 0 && &n.holders[0] != &n.firstHolder[0] {
		bytes += cap(n.holders)*int(unsafe.Sizeof(holder{})) + (len(n.holders)-1)*int(unsafe.Sizeof(use{}))
	}
	return bytes
}

// resized accounts for the memory of a node after a change.
func (x *Index) resized(n *node) {
	bytes := n.size()
	x.bytes += bytes - int(n.bytes)
	n.bytes = int32(bytes) //nolint:gosec // of one node
}

// report reports changes of the memory of the index to the budget.
func (x *Index) report() {
	if grown := x.bytes - x.reported; grown != 0 {
		x.memory.Add(indexmem.Prompts, int64(grown))
		x.reported = x.bytes
	}
}

// Oldest returns the tick in which the least recently used part was used.
func (x *Index) Oldest() (tick uint32, ok bool) {
	if x.borders == 0 {
		return 0, false
	}
	for _, is := range x.targets {
		if is != nil && is.oldest() != nil && (!ok || indexmem.Before(is.oldest().at, tick)) {
			tick, ok = is.oldest().at, true
		}
	}
	return tick, ok
}

// Evict removes parts that were last used up to a tick, until it has freed the given number of
// bytes. It returns the number of bytes freed.
func (x *Index) Evict(until uint32, bytes int64) (freed int64) {
	if x.borders == 0 {
		return 0
	}
	before := x.bytes
	for _, is := range x.targets {
		for is != nil && is.oldest() != nil && indexmem.Before(is.oldest().at, until) && int64(before-x.bytes) < bytes {
			x.forget(is.oldest(), math.MaxInt)
		}
	}
	x.report()
	return int64(before - x.bytes)
}

// Memory returns the estimated memory of the index in bytes.
func (x *Index) Memory() int { return x.bytes }

// Borders returns the number of borders held, counted once for each target.
func (x *Index) Borders() int { return x.borders }

// Held returns the number of borders that a target holds.
func (x *Index) Held(t int) int { return x.targets[t].borders }

// Bytes returns the bytes of text that a target holds.
func (x *Index) Bytes(t int) int { return x.targets[t].bytes }

// Add adds a target, which holds nothing yet, and returns its number.
func (x *Index) Add() int {
	t := slices.Index(x.targets, nil)
	if t < 0 {
		t, x.targets = len(x.targets), append(x.targets, nil)
	}
	x.targets[t] = newTarget()
	return t
}

// Remove removes a target. Add may return its number again.
func (x *Index) Remove(t int) {
	x.Clear(t)
	x.targets[t] = nil
}

// Clear removes all that a target holds.
func (x *Index) Clear(t int) {
	for is := x.targets[t]; is.oldest() != nil; {
		x.forget(is.oldest(), math.MaxInt)
	}
	x.report()
}

// Lookup sets longest[t], for every target t, to the number of consecutive borders of a prompt that it holds,
// from the first one. longest has an element for each target number.
//
// own is the last border at which prompts diverge: the text after it belongs to this prompt only.
// It stays the same while a chat grows, and is the same in every proxy that has seen prompts
// diverge there.
func (x *Index) Lookup(c *Chain, longest []int) (own int) {
	clear(longest)
	for _, p := range x.walk(c) {
		n := p.node
		for i := range n.holders {
			longest[n.holders[i].target] = int(n.depth) + min(n.holders[i].borders, p.same)
		}
		if n.forked && p.same == len(n.keys) {
			own = int(n.depth) + p.same
		}
	}
	return own
}

// Note records that a target computes a prompt, or reads it from its cache. capacity is the
// number of bytes that the target can hold; 0 if unknown.
func (x *Index) Note(t int, c *Chain, capacity int) {
	x.forgetRemote(t, c)
	steps := x.grow(c, x.walk(c))
	// The beginning is used last: more prompts need it, and the rest is useless without it.
	for _, p := range slices.Backward(steps) {
		x.hold(t, p.node, p.same)
	}
	x.targets[t].capacity = capacity
	x.bound(t)
	x.report()
}

// walk returns the nodes on the path of a prompt, from the root. The next call overwrites them.
func (x *Index) walk(c *Chain) []passed {
	x.steps = x.steps[:0]
	next := x.root
	for at := 0; at < len(c.keys); {
		n := next[c.keys[at]]
		if n == nil {
			break
		}
		same := inCommon(n.keys, c.keys[at:])
		x.steps = append(x.steps, passed{n, same})
		if same < len(n.keys) {
			break
		}
		at += same
		next = n.next
	}
	return x.steps
}

// grow adds the part of a prompt that is not in the tree after the nodes on its path. It splits the last node
// where the common part ends.
func (x *Index) grow(c *Chain, steps []passed) []passed {
	var n *node
	at, within := 0, false
	if len(steps) > 0 {
		last := &steps[len(steps)-1]
		if within = last.same < len(last.node.keys); within {
			last.node = x.split(last.node, last.same)
		}
		n, at = last.node, int(last.node.depth)+last.same
	}
	rest := c.keys[at:]
	switch {
	case len(rest) == 0:
		return steps
	case n == nil:
	case !within && len(n.next) == 0 && !n.forked:
		n.keys = append(n.keys, rest...)
		x.resized(n)
		steps[len(steps)-1].same += len(rest)
		return steps
	default:
		n.forked = true
	}
	fresh := &node{keys: append([]Key(nil), rest...), depth: int32(at), parent: n} //nolint:gosec // a number of borders
	fresh.holders = fresh.firstHolder[:0]
	x.following(n)[rest[0]] = fresh
	x.resized(fresh)
	if n != nil {
		x.resized(n)
	}
	x.steps = append(steps, passed{fresh, len(rest)})
	return x.steps
}

// following returns the nodes that follow n; those of the root if n is nil.
func (x *Index) following(n *node) branches {
	switch {
	case n == nil:
		return x.root
	case n.next == nil:
		n.next = branches{}
	}
	return n.next
}

// split divides a node in two and returns the first one, which has the given number of borders.
func (x *Index) split(n *node, at int) *node {
	first := &node{keys: slices.Clone(n.keys[:at]), depth: n.depth, parent: n.parent, next: branches{n.keys[at]: n}}
	x.following(n.parent)[n.keys[0]] = first
	n.keys, n.depth, n.parent = slices.Clone(n.keys[at:]), n.depth+int32(at), first //nolint:gosec // a number of borders
	all := n.holders
	n.holders = nil
	for _, h := range all {
		if h.borders <= at {
			h.use.node = first
			first.holders = append(first.holders, h)
			continue
		}
		upper := &use{node: first, target: int32(h.target)} //nolint:gosec // the number of a target
		upper.linkBehind(h.use)
		first.holders = append(first.holders, holder{h.target, at, upper})
		h.borders -= at
		n.holders = append(n.holders, h)
	}
	x.resized(first)
	if len(n.holders) > 0 {
		x.resized(n)
	} else {
		delete(first.next, n.keys[0])
		x.bytes -= int(n.bytes)
	}
	return first
}

// hold records that a target uses the given number of first borders of a node.
func (x *Index) hold(t int, n *node, borders int) {
	is := x.targets[t]
	i, ok := n.holder(t)
	if ok {
		n.holders[i].use.unlink()
	} else {
		u := &n.firstUse
		if u.node != nil {
			u = &use{}
		}
		u.node, u.target = n, int32(t) //nolint:gosec // the number of a target
		n.holders = slices.Insert(n.holders, i, holder{target: t, use: u})
	}
	h := &n.holders[i]
	is.link(h.use, x.memory.Now())
	if h.borders < borders {
		x.count(t, borders-h.borders, end(int(n.depth)+borders)-end(int(n.depth)+h.borders))
		h.borders = borders
	}
	if !ok {
		x.resized(n)
	}
}

// holder returns the index of a target among the holders, or the index at which to insert it.
func (n *node) holder(t int) (at int, ok bool) {
	return slices.BinarySearchFunc(n.holders, t, func(h holder, t int) int { return h.target - t })
}

// count changes the number of borders and bytes that a target holds.
func (x *Index) count(t, borders, bytes int) {
	is := x.targets[t]
	is.borders += borders
	is.bytes += bytes
	x.borders += borders
}

// bound removes the excess over a target's capacity; nothing if the capacity is unknown.
func (x *Index) bound(t int) {
	for is := x.targets[t]; is.capacity > 0 && is.bytes > is.capacity && is.oldest() != nil; {
		x.forget(is.oldest(), bordersIn(is.oldest(), is.bytes-is.capacity))
	}
}

// bordersIn returns the number of borders at the end of u that hold at least the given number of bytes, or
// all of its borders if they hold less.
func bordersIn(u *use, bytes int) int {
	if u.node == nil {
		return math.MaxInt // prompts of other proxies are removed as a whole
	}
	at, _ := u.node.holder(int(u.target))
	held, depth := u.node.holders[at].borders, int(u.node.depth)
	last := end(depth + held)
	for n := 1; n < held; n++ {
		if last-end(depth+held-n) >= bytes {
			return n
		}
	}
	return held
}

// forget removes the given number of borders at the end of u, at most all of them.
func (x *Index) forget(u *use, borders int) {
	t, n := int(u.target), u.node
	if n == nil {
		x.remote.remove(u)
		u.unlink()
		x.count(t, -len(u.placed.Keys), -int(u.placed.Bytes))
		x.bytes -= remoteBytes
		return
	}
	at, _ := n.holder(t)
	h := &n.holders[at]
	borders = min(borders, h.borders)
	depth := int(n.depth)
	x.count(t, -borders, end(depth+h.borders-borders)-end(depth+h.borders))
	if h.borders -= borders; h.borders == 0 {
		u.unlink()
		if n.holders = slices.Delete(n.holders, at, at+1); len(n.holders) == 0 {
			delete(x.following(n.parent), n.keys[0])
			x.bytes -= int(n.bytes)
			return
		}
	}
	n.trim()
	x.resized(n)
}

// trim removes borders at the end of the node that no target holds, except for the first of them, which shows
// where prompts diverge.
func (n *node) trim() {
	if len(n.next) > 0 {
		return // a target that holds a following node holds all of this one
	}
	known := 0
	for _, h := range n.holders {
		known = max(known, h.borders)
	}
	if known < len(n.keys) {
		n.keys, n.forked = n.keys[:known+1], false
		if known+1 < cap(n.keys)/2 {
			n.keys = slices.Clone(n.keys)
		}
	}
}

// target has the prompts that one instance or rank holds.
type target struct {
	lru      use // its LRU list is a ring: lru.newer is the oldest use, lru.older the newest
	borders  int
	bytes    int // of text
	capacity int // in bytes of text, as of the last Note; 0: unknown
}

func newTarget() *target {
	is := &target{}
	is.lru.older, is.lru.newer = &is.lru, &is.lru
	return is
}

// oldest returns the least recent use, nil if there is none.
func (is *target) oldest() *use {
	if is.lru.newer == &is.lru {
		return nil
	}
	return is.lru.newer
}

// use is an entry of the LRU list of a target: a node of the tree, or a prompt of another proxy.
type use struct {
	newer, older *use
	target       int32
	at           uint32  // tick of the last use, see indexmem
	node         *node   // nil for a prompt of another proxy
	placed       *Placed // nil for a node
}

// link makes u the newest entry, used in the tick now.
func (is *target) link(u *use, now uint32) {
	u.linkBehind(is.lru.older)
	u.at = now
}

// linkBehind inserts u as the next newer entry after older, with its tick.
func (u *use) linkBehind(older *use) {
	u.older, u.newer, u.at = older, older.newer, older.at
	u.older.newer, u.newer.older = u, u
}

func (u *use) unlink() { u.older.newer, u.newer.older = u.newer, u.older }
