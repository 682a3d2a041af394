package prefix

import (
	"math"
	"slices"
)

// Index knows up to which border each target has computed the prompts that it was given.
// A target is an instance, or one of its ranks. It is bounded by what each of them can
// hold: what was not asked for the longest time is forgotten first, as engines do, and of
// one prompt its end before its beginning. It is not safe for concurrent use.
type Index struct {
	targets []*target // nil: a place that is free
	holders map[Key]holders
	entries int
	most    int      // entries of all targets
	room    []uint64 // for Longest
}

// target is what one of them holds.
type target struct {
	at    map[Key]int32 // place in nodes
	nodes []node
	free  int32 // first of those that are not used; linked by next
	// newest and oldest are the ends of the list in the order of use.
	newest, oldest int32
	bytes          int // of text
}

// node is one border that a target knows. It stands for the text from the border before.
type node struct {
	key        Key
	newer, old int32
	bytes      int32
}

const none = int32(-1)

// EntryBytes is about what one border takes.
const EntryBytes = 100

// NewIndex makes one that holds at most so many borders, of all targets together. Each
// takes some EntryBytes.
func NewIndex(most int) *Index { return &Index{holders: map[Key]holders{}, most: most} }

// Entries is how many borders are known, counted once for each target.
func (x *Index) Entries() int { return x.entries }

// Held is how many borders a target is known to hold.
func (x *Index) Held(t int) int { return len(x.targets[t].at) }

// Bytes is how much text the target is known to hold.
func (x *Index) Bytes(t int) int { return x.targets[t].bytes }

// Add makes room for a target, which knows nothing yet, and gives its number.
func (x *Index) Add() int {
	fresh := &target{at: map[Key]int32{}, free: none, newest: none, oldest: none}
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
	is := x.targets[t]
	for is.oldest != none {
		x.forget(t, is, is.oldest)
	}
}

// Longest finds for every target how many borders of a prompt it knows, one after the
// other from the first. longest has a place for each target up to the highest number.
func (x *Index) Longest(c *Chain, longest []int) {
	clear(longest)
	if len(c.keys) == 0 {
		return
	}
	know := x.holders[c.keys[0]]
	alive := holders{first: know.first, rest: append(x.room[:0], know.rest...)}
	x.room = alive.rest
	for i, key := range c.keys[1:] {
		// Most are dropped once, and those that stay cost nothing.
		alive.meet(x.holders[key], func(t int) { longest[t] = i + 1 })
		if alive.empty() {
			return
		}
	}
	alive.each(func(t int) { longest[t] = len(c.keys) })
}

// Own gives the first border of the text that is a prompt's own: behind all at which
// prompts have parted. It stays the same while a chat grows, and is the same for everybody
// who has seen prompts part there.
func (x *Index) Own(c *Chain) int {
	for i := len(c.keys) - 1; i >= 0; i-- {
		if x.holders[c.keys[i]].forked {
			return i + 1
		}
	}
	return 0
}

// Note takes in that a target computes a prompt, or reads it from its cache. It can hold
// so many bytes; 0 means that this is not known.
func (x *Index) Note(t int, c *Chain, capacity int) {
	is := x.targets[t]
	// The beginning is used last: it is needed by more, and without it the rest is of no
	// use.
	for i := len(c.keys) - 1; i >= 0; i-- {
		if at, ok := is.at[c.keys[i]]; ok {
			is.unlink(at)
			is.link(at)
		} else {
			x.learn(t, is, c.keys[i], c.End(i+1)-c.End(i))
		}
		if i+1 < len(c.keys) {
			x.follow(c.keys[i], c.keys[i+1])
		}
	}
	x.bound(is, t, capacity)
}

// bound forgets what a target of a capacity, 0 for one without a bound, has no room for,
// and what there are too many of in all.
func (x *Index) bound(is *target, t, capacity int) {
	if capacity == 0 {
		capacity = math.MaxInt
	}
	for is.oldest != none && is.bytes > capacity {
		x.forget(t, is, is.oldest)
	}
	for x.entries > x.most {
		x.shrink()
	}
}

// shrink forgets the oldest border of whoever knows most.
func (x *Index) shrink() {
	largest := -1
	for t, is := range x.targets {
		if is != nil && (largest < 0 || len(is.at) > len(x.targets[largest].at)) {
			largest = t
		}
	}
	x.forget(largest, x.targets[largest], x.targets[largest].oldest)
}

// follow notes that a border follows another.
func (x *Index) follow(key, next Key) {
	switch know := x.holders[key]; {
	case know.forked || know.next == next:
	case know.next == 0:
		know.next = next
		x.holders[key] = know
	default:
		know.forked = true
		x.holders[key] = know
	}
}

func (x *Index) learn(t int, is *target, key Key, bytes int) {
	at := is.free
	if at != none {
		is.free = is.nodes[at].old
	} else {
		at = int32(len(is.nodes)) //nolint:gosec // bounded by most
		is.nodes = append(is.nodes, node{})
	}
	is.nodes[at] = node{key: key, bytes: int32(bytes)} //nolint:gosec // a part of a prompt
	is.link(at)
	is.at[key] = at
	is.bytes += bytes
	x.entries++
	know := x.holders[key]
	know.add(t)
	x.holders[key] = know
}

func (x *Index) forget(t int, is *target, at int32) {
	n := is.nodes[at]
	is.unlink(at)
	is.nodes[at] = node{old: is.free}
	is.free = at
	delete(is.at, n.key)
	is.bytes -= int(n.bytes)
	x.entries--
	know := x.holders[n.key]
	if know.remove(t); know.empty() {
		delete(x.holders, n.key)
	} else {
		x.holders[n.key] = know
	}
}

// link makes a node the newest.
func (is *target) link(at int32) {
	is.nodes[at].newer, is.nodes[at].old = none, is.newest
	if is.newest != none {
		is.nodes[is.newest].newer = at
	} else {
		is.oldest = at
	}
	is.newest = at
}

func (is *target) unlink(at int32) {
	n := &is.nodes[at]
	if n.newer != none {
		is.nodes[n.newer].old = n.old
	} else {
		is.newest = n.old
	}
	if n.old != none {
		is.nodes[n.old].newer = n.newer
	} else {
		is.oldest = n.newer
	}
}

// Hear notes a prompt that another proxy has sent to target t.
func (x *Index) Hear(t int, p *Placed, capacity int) {
	is := x.targets[t]
	for i, key := range slices.Backward(p.Keys[:]) {
		if at, ok := is.at[key]; ok {
			is.unlink(at)
			is.link(at)
			continue
		}
		bytes := 0
		if i == 0 { // kept longest
			bytes = int(p.Bytes)
		}
		x.learn(t, is, key, bytes)
	}
	x.bound(is, t, capacity)
}

// Deepest raises what Longest has found by what was heard: of such prompts the last
// borders are known only.
func (x *Index) Deepest(c *Chain, longest []int) {
	for i, key := range slices.Backward(c.keys) {
		know, ok := x.holders[key]
		if !ok {
			continue
		}
		know.each(func(t int) { longest[t] = max(longest[t], i+1) })
	}
}
