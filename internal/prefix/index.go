package prefix

import (
	"math"
	"slices"
)

// Index knows up to which border each target has computed the prompts that it was given.
// A target is an instance, or one of its ranks. It is bounded by what each of them can
// hold: what was not asked for the longest time is forgotten first, as engines do, and of
// one prompt its end before its beginning.
//
// Prompts are a tree, in which a node is a text between two places at which prompts part:
// a prompt takes a few steps in it, however long it is. An index is not safe for
// concurrent use.
type Index struct {
	root    branches
	heard   heard
	targets []*target // nil: a place that is free
	borders int       // of all targets
	most    int
	steps   []passed // of walk
}

// branches are the nodes that follow a place, by their first border.
type branches map[Key]*node

// node is a text between two places.
type node struct {
	keys   []Key // its borders, at least one
	depth  int   // how many borders stand before them
	parent *node // nil for those of the root
	next   branches
	// forked tells that prompts have parted behind it, even if one of them is forgotten.
	forked bool
	// holders have every target that knows the node, in the order of their numbers. A
	// target that knows one knows all of its parent.
	holders []holder
	// Memory for the first of them, as most nodes are of one chat, on one instance.
	firstHolder [1]holder
	firstUse    use
}

// holder says how many of a node's borders a target knows, and where it stands in the
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

// BorderBytes is about what one border takes with prompts of some KiB. Those of long
// prompts take a third of it.
const BorderBytes = 35

// NewIndex makes one that holds at most so many borders, of all targets together. Each
// takes some BorderBytes.
func NewIndex(most int) *Index { return &Index{root: branches{}, heard: heard{}, most: most} }

// Borders is how many borders are known, counted once for each target.
func (x *Index) Borders() int { return x.borders }

// Held is how many borders a target is known to hold.
func (x *Index) Held(t int) int { return x.targets[t].borders }

// Bytes is how much text the target is known to hold.
func (x *Index) Bytes(t int) int { return x.targets[t].bytes }

// Add makes room for a target, which knows nothing yet, and gives its number.
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
			longest[n.holders[i].target] = n.depth + min(n.holders[i].borders, p.same)
		}
		if n.forked && p.same == len(n.keys) {
			own = n.depth + p.same
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
}

// walk gives the nodes that a prompt goes through, from the root. They are overwritten by
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
		n, at = last.node, last.node.depth+last.same
	}
	rest := c.keys[at:]
	switch {
	case len(rest) == 0:
		return steps
	case n == nil:
	case !within && len(n.next) == 0 && !n.forked:
		n.keys = append(n.keys, rest...)
		steps[len(steps)-1].same += len(rest)
		return steps
	default:
		n.forked = true
	}
	fresh := &node{keys: append([]Key(nil), rest...), depth: at, parent: n}
	fresh.holders = fresh.firstHolder[:0]
	x.behind(n)[rest[0]] = fresh
	x.steps = append(steps, passed{fresh, len(rest)})
	return x.steps
}

// behind gives the nodes that follow one, or the root for nil.
func (x *Index) behind(n *node) branches {
	switch {
	case n == nil:
		return x.root
	case n.next == nil:
		n.next = branches{}
	}
	return n.next
}

// split makes two of a node and gives the first, with so many borders.
func (x *Index) split(n *node, at int) *node {
	first := &node{keys: n.keys[:at:at], depth: n.depth, parent: n.parent, next: branches{n.keys[at]: n}}
	x.behind(n.parent)[n.keys[0]] = first
	n.keys, n.depth, n.parent = n.keys[at:], n.depth+at, first
	all := n.holders
	n.holders = nil
	for _, h := range all {
		if h.borders <= at {
			h.use.node = first
			first.holders = append(first.holders, h)
			continue
		}
		upper := &use{node: first, target: h.target}
		x.targets[h.target].linkBehind(upper, h.use)
		first.holders = append(first.holders, holder{h.target, at, upper})
		h.borders -= at
		n.holders = append(n.holders, h)
	}
	if len(n.holders) == 0 {
		delete(first.next, n.keys[0])
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
		u.node, u.target = n, t
		n.holders = slices.Insert(n.holders, i, holder{target: t, use: u})
	}
	h := &n.holders[i]
	is.link(h.use)
	if h.borders < borders {
		x.count(t, borders-h.borders, end(n.depth+borders)-end(n.depth+h.borders))
		h.borders = borders
	}
}

// holder gives the place of a target among the holders, or the one where it belongs.
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

// bound forgets what a target of a capacity, 0 for one without a bound, has no room for,
// and what there are too many of in all.
func (x *Index) bound(t, capacity int) {
	for is := x.targets[t]; capacity > 0 && is.bytes > capacity && is.oldest != nil; {
		x.forget(is.oldest, bordersIn(is.oldest, is.bytes-capacity))
	}
	for x.borders > x.most {
		// The target that knows most forgets.
		largest := -1
		for t, is := range x.targets {
			if is != nil && (largest < 0 || is.borders > x.targets[largest].borders) {
				largest = t
			}
		}
		x.forget(x.targets[largest].oldest, x.borders-x.most)
	}
}

// bordersIn is how many borders at the end of what was used hold so many bytes, or all.
func bordersIn(u *use, bytes int) int {
	if u.node == nil {
		return math.MaxInt // what was heard goes as a whole
	}
	at, _ := u.node.holder(u.target)
	held := u.node.holders[at].borders
	last := end(u.node.depth + held)
	for n := 1; n < held; n++ {
		if last-end(u.node.depth+held-n) >= bytes {
			return n
		}
	}
	return held
}

// forget forgets so many borders at the end of what was used, or all of it.
func (x *Index) forget(u *use, borders int) {
	is, n := x.targets[u.target], u.node
	if n == nil {
		x.heard.remove(u)
		is.unlink(u)
		x.count(u.target, -len(u.heard.Keys), -int(u.heard.Bytes))
		return
	}
	at, _ := n.holder(u.target)
	h := &n.holders[at]
	borders = min(borders, h.borders)
	x.count(u.target, -borders, end(n.depth+h.borders-borders)-end(n.depth+h.borders))
	if h.borders -= borders; h.borders > 0 {
		n.trim()
		return
	}
	is.unlink(u)
	if n.holders = slices.Delete(n.holders, at, at+1); len(n.holders) == 0 {
		delete(x.behind(n.parent), n.keys[0])
		return
	}
	n.trim()
}

// trim drops borders at the end that nobody knows, but for the first: it tells where a
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
	}
}
