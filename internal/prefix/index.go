package prefix

import (
	"math"
	"slices"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/indexmem"
)

// Index knows up to which border each target has computed the prompts that it was given.
// A target is an instance, or one of its ranks. An Index forgets what a target itself cannot
// hold, least recently used parts first, as engines do, and of one prompt its end before its
// beginning. Evict does the same if the memory of all indexes is used up.
//
// Prompts are a tree, in which a node is a text between two places at which prompts part:
// a prompt takes a few steps in it, however long it is. NewIndex creates an Index. It is not
// safe for concurrent use.
type Index struct {
	root     branches
	heard    heard
	targets  []*target // nil: a number that is free
	borders  int       // of all targets
	memory   *indexmem.Budget
	bytes    int      // of memory that nodes and heard prompts take
	reported int      // of them, to memory
	steps    []passed // of walk
}

// branches are the nodes that follow a place, by their first border.
type branches map[Key]*node

// node is a text between two places.
type node struct {
	keys   []Key // its borders, at least one
	depth  int32 // number of borders before them
	bytes  int32 // of memory, as counted in Index.bytes
	parent *node // nil for those of the root
	next   branches
	// forked reports whether prompts have parted after it, even if one of them is forgotten.
	forked bool
	// holders have every target that knows the node, in the order of their numbers. A
	// target that knows one knows all of its parent.
	holders []holder
	// Memory for the first of them, as most nodes are of one chat, on one instance.
	firstHolder [1]holder
	firstUse    use
}

// holder says how many of a node's borders a target knows, and where it is in the
// order of what the target has used.
type holder struct {
	target  int
	borders int
	use     *use
}

// passed is a node that a prompt goes through, and how many of its borders the prompt has:
// all of them but for the last node.
type passed struct {
	node *node
	same int
}

// Sizes of what a node takes besides its own memory. They are estimates for Go's maps.
const (
	slotBytes   = 32  // its place among the branches of its parent
	branchBytes = 190 // its own branches, if it has any
)

// NewIndex returns an Index that reports its memory to a Budget.
func NewIndex(memory *indexmem.Budget) *Index {
	return &Index{root: branches{}, heard: heard{}, memory: memory}
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

// resized counts the memory of a node after a change.
func (x *Index) resized(n *node) {
	bytes := n.size()
	x.bytes += bytes - int(n.bytes)
	n.bytes = int32(bytes) //nolint:gosec // of one node
}

// report tells the budget of the memory of the index.
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
		if is != nil && is.oldest != nil && (!ok || indexmem.Before(is.oldest.at, tick)) {
			tick, ok = is.oldest.at, true
		}
	}
	return tick, ok
}

// Evict forgets parts that were last used up to a tick, until it has freed so many bytes of
// memory. It returns the number of bytes freed.
func (x *Index) Evict(until uint32, bytes int64) (freed int64) {
	if x.borders == 0 {
		return 0
	}
	before := x.bytes
	for _, is := range x.targets {
		for is != nil && is.oldest != nil && indexmem.Before(is.oldest.at, until) && int64(before-x.bytes) < bytes {
			x.forget(is.oldest, math.MaxInt)
		}
	}
	x.report()
	return int64(before - x.bytes)
}

// Memory is the estimated memory of the index in bytes.
func (x *Index) Memory() int { return x.bytes }

// Borders is how many borders are known, counted once for each target.
func (x *Index) Borders() int { return x.borders }

// Held is how many borders a target is known to hold.
func (x *Index) Held(t int) int { return x.targets[t].borders }

// Bytes is how much text the target is known to hold.
func (x *Index) Bytes(t int) int { return x.targets[t].bytes }

// Add makes room for a target, which knows nothing yet, and returns its number.
func (x *Index) Add() int {
	fresh := &target{}
	for t, is := range x.targets {
		if is == nil {
			x.targets[t] = fresh
			return t
		}
	}
	x.targets = append(x.targets, fresh)
	return len(x.targets) - 1
}

// Remove forgets a target. Its number may be given to another.
func (x *Index) Remove(t int) {
	x.Clear(t)
	x.targets[t] = nil
}

// Clear forgets what a target holds.
func (x *Index) Clear(t int) {
	for is := x.targets[t]; is.oldest != nil; {
		x.forget(is.oldest, math.MaxInt)
	}
	x.report()
}

// Look finds for every target how many borders of a prompt it knows, one after the other
// from the first. longest has a place for each target up to the highest number.
//
// own is the first border of the text that is the prompt's own: behind all at which
// prompts have parted. It stays the same while a chat grows, and is the same for everybody
// who has seen prompts part there.
func (x *Index) Look(c *Chain, longest []int) (own int) {
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

// Note takes in that a target computes a prompt, or reads it from its cache. It can hold
// so many bytes; 0 means that this is not known.
func (x *Index) Note(t int, c *Chain, capacity int) {
	x.unhear(t, c)
	steps := x.grow(c, x.walk(c))
	// The beginning is used last: it is needed by more, and without it the rest is of no
	// use.
	for _, p := range slices.Backward(steps) {
		x.hold(t, p.node, p.same)
	}
	x.bound(t, capacity)
	x.report()
}

// walk returns the nodes that a prompt goes through, from the root. They are overwritten by
// the next call.
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

// grow puts what of a prompt is not in the tree behind the nodes that it goes through. Nodes
// end where it does.
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
	x.behind(n)[rest[0]] = fresh
	x.resized(fresh)
	if n != nil {
		x.resized(n)
	}
	x.steps = append(steps, passed{fresh, len(rest)})
	return x.steps
}

// behind returns the nodes that follow one, or the root for nil.
func (x *Index) behind(n *node) branches {
	switch {
	case n == nil:
		return x.root
	case n.next == nil:
		n.next = branches{}
	}
	return n.next
}

// split makes two of a node and returns the first, with so many borders.
func (x *Index) split(n *node, at int) *node {
	first := &node{keys: slices.Clone(n.keys[:at]), depth: n.depth, parent: n.parent, next: branches{n.keys[at]: n}}
	x.behind(n.parent)[n.keys[0]] = first
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
		x.targets[h.target].linkBehind(upper, h.use)
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

// hold notes that a target uses so many borders of a node.
func (x *Index) hold(t int, n *node, borders int) {
	is := x.targets[t]
	i, ok := n.holder(t)
	if ok {
		is.unlink(n.holders[i].use)
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

// holder returns the place of a target among the holders, or the one where it belongs.
func (n *node) holder(t int) (at int, ok bool) {
	return slices.BinarySearchFunc(n.holders, t, func(h holder, t int) int { return h.target - t })
}

// count counts borders and bytes that a target holds more than before, or fewer.
func (x *Index) count(t, borders, bytes int) {
	is := x.targets[t]
	is.borders += borders
	is.bytes += bytes
	x.borders += borders
}

// bound forgets what a target with a capacity in bytes of text cannot hold; 0 means that
// its capacity is not known.
func (x *Index) bound(t, capacity int) {
	for is := x.targets[t]; capacity > 0 && is.bytes > capacity && is.oldest != nil; {
		x.forget(is.oldest, bordersIn(is.oldest, is.bytes-capacity))
	}
}

// bordersIn is how many borders at the end of what was used hold so many bytes, or all.
func bordersIn(u *use, bytes int) int {
	if u.node == nil {
		return math.MaxInt // what was heard goes as a whole
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

// forget forgets so many borders at the end of what was used, or all of it.
func (x *Index) forget(u *use, borders int) {
	t, n := int(u.target), u.node
	is := x.targets[t]
	if n == nil {
		x.heard.remove(u)
		is.unlink(u)
		x.count(t, -len(u.heard.Keys), -int(u.heard.Bytes))
		x.bytes -= heardBytes
		return
	}
	at, _ := n.holder(t)
	h := &n.holders[at]
	borders = min(borders, h.borders)
	depth := int(n.depth)
	x.count(t, -borders, end(depth+h.borders-borders)-end(depth+h.borders))
	if h.borders -= borders; h.borders == 0 {
		is.unlink(u)
		if n.holders = slices.Delete(n.holders, at, at+1); len(n.holders) == 0 {
			delete(x.behind(n.parent), n.keys[0])
			x.bytes -= int(n.bytes)
			return
		}
	}
	n.trim()
	x.resized(n)
}

// trim drops borders at the end that nobody knows, but for the first: it reports where a
// prompt goes on that has parted from the others there.
func (n *node) trim() {
	if len(n.next) > 0 {
		return // a target that knows what follows knows all of the node
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
