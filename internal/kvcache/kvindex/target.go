package kvindex

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
)

// target is the known state of one rank's cache. It applies the rank's events to its blocks, and adds those
// that count to the blocks of the index.
type target struct {
	slot slot
	live atomic.Bool

	blockSize atomic.Int32
	counted   atomic.Int64 // blocks that all groups have
	held      atomic.Int64 // entries of blocks
	orphans   atomic.Uint64
	full      atomic.Uint64
	lacks     atomic.Bool // blocks were left out since the last clear, or events were missed

	mu      sync.Mutex
	dropped bool
	groups  uint16 // groups with full attention
	blocks  map[kvevents.Hash]entry
	peak    int // most entries of blocks since the map was created
	index   *Index
}

// entry is a block, by the engine's name for it.
type entry struct {
	key    Key
	depth  uint32 // number of blocks before it, at most maxDepth
	groups uint16 // groups that have it
}

// maxDepth bounds the depth that an engine can cause.
const maxDepth = 1 << 20

// maxGroups bounds the groups of layers that are distinguished. Others are ignored.
const maxGroups = 16

// event applies one event. The caller holds the target's lock.
func (t *target) event(e *kvevents.Event) {
	if e.Kind == kvevents.Cleared {
		t.clear()
		return
	}
	if e.Remote || !onGPU(e.Medium) {
		return
	}
	switch e.Kind {
	case kvevents.Stored:
		if group, ok := fullAttention(e); ok {
			t.stored(e, group)
		}
	case kvevents.Removed:
		group := groupOf(e)
		for _, h := range e.Hashes {
			t.removed(h, group)
		}
	}
}

func onGPU(medium []byte) bool {
	return len(medium) == 0 || bytes.EqualFold(medium, []byte("gpu"))
}

// groupOf returns the bit of an event's group; 0 if its number is too high.
func groupOf(e *kvevents.Event) uint16 {
	if e.Group == kvevents.Absent {
		return 1
	}
	if e.Group >= maxGroups {
		return 0
	}
	return 1 << e.Group
}

// fullAttention returns the bit of the event's group if its layers attend to whole prompts. Engines that do
// not report the kind of attention have one group, or full attention is in the first.
func fullAttention(e *kvevents.Event) (uint16, bool) {
	group := groupOf(e)
	switch string(e.Spec) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return group, group != 0
	case "", "unknown":
		return group, group == 1
	}
	return 0, false
}

func (t *target) stored(e *kvevents.Event, group uint16) {
	if len(e.Tokens) == 0 || e.BlockSize <= 0 {
		return // names without tokens cannot be used
	}
	if t.groups&group == 0 {
		t.widen(group)
	}
	parent, depth := root(string(e.LoRA)), uint32(0)
	switch {
	case len(e.LoRA) > 0:
		t.index.addAdapter(parent)
	case e.LoRAID > 0:
		parent = Key(mix(uint64(e.LoRAID), secrets[0])) // no request matches it without a name
	}
	if e.HasParent {
		on, ok := t.blocks[e.Parent]
		if !ok {
			t.orphans.Add(uint64(len(e.Hashes)))
			t.lacks.Store(true)
			return
		}
		parent, depth = on.key, min(on.depth+1, maxDepth)
	}
	if int(t.blockSize.Load()) < e.BlockSize { // a partial block is smaller
		t.blockSize.Store(int32(e.BlockSize)) //nolint:gosec // the reader bounds it
	}
	for i, h := range e.Hashes {
		var extra uint64
		if len(e.Extra) > 0 {
			extra = extras(e.Extra[i], e.LoRA)
		}
		parent = block(parent, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], extra)
		if !t.put(h, entry{key: parent, depth: depth, groups: group}) {
			t.full.Add(uint64(len(e.Hashes) - i)) //nolint:gosec // i is below the length
			t.lacks.Store(true)
			return
		}
		depth = min(depth+1, maxDepth)
	}
}

// put records that a group has a block. It returns false if there is no memory for it and the target already
// has its share of the blocks.
func (t *target) put(h kvevents.Hash, is entry) bool {
	was, ok := t.blocks[h]
	switch {
	case ok && was.key != is.key: // another block with the same hash: the old one was evicted
		t.forget(was)
		was = entry{}
	case !ok && t.index.memory.Full(indexmem.Blocks, entryBytes+sharedBytes) && len(t.blocks) >= t.index.share():
		return false
	case !ok:
		t.resize(1)
	}
	is.groups |= was.groups
	t.blocks[h] = is
	if !t.counts(was) && t.counts(is) {
		t.counted.Add(1)
		t.index.blocks.add(is.key, t.slot)
	}
	return true
}

// counts reports whether all groups have a block.
func (t *target) counts(e entry) bool { return e.groups != 0 && e.groups&t.groups == t.groups }

// forget removes a block from the index.
func (t *target) forget(e entry) {
	if t.counts(e) {
		t.counted.Add(-1)
		t.index.blocks.remove(e.key, t.slot)
	}
}

func (t *target) removed(h kvevents.Hash, group uint16) {
	was, ok := t.blocks[h]
	if !ok || was.groups&group == 0 {
		return
	}
	t.forget(was)
	if was.groups &^= group; was.groups == 0 {
		t.drop(h)
	} else {
		t.blocks[h] = was
	}
}

// resize counts entries of blocks.
func (t *target) resize(by int) {
	t.index.held.Add(int64(by))
	t.peak = max(t.peak, int(t.held.Add(int64(by))))
	t.index.memory.Add(indexmem.Blocks, int64(by)*entryBytes)
}

// drop removes the entry of a block that is no longer in the index.
func (t *target) drop(h kvevents.Hash) {
	delete(t.blocks, h)
	t.resize(-1)
	t.blocks, t.peak = compact(t.blocks, t.peak)
}

// shrink evicts blocks until at most the given number is left. It evicts the deepest blocks first, so that
// the beginnings of prompts remain.
func (t *target) shrink(to int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	excess := len(t.blocks) - to
	if excess <= 0 {
		return
	}
	var at []int // number of blocks at each depth
	for _, e := range t.blocks {
		for int(e.depth) >= len(at) {
			at = append(at, 0)
		}
		at[e.depth]++
	}
	depth := len(at) - 1
	some := excess // number to evict at this depth; all deeper blocks are evicted
	for ; at[depth] < some; depth-- {
		some -= at[depth]
	}
	for h, e := range t.blocks {
		switch d := int(e.depth); {
		case d < depth || d == depth && some == 0:
			continue
		case d == depth:
			some--
		}
		t.forget(e)
		delete(t.blocks, h)
		t.resize(-1)
	}
	t.full.Add(uint64(excess)) //nolint:gosec // positive
	t.lacks.Store(true)
	t.blocks, t.peak = compact(t.blocks, t.peak)
}

// widen adds a group that was not known: earlier blocks lack it.
func (t *target) widen(group uint16) {
	for _, e := range t.blocks {
		t.forget(e)
	}
	t.groups |= group
}

// clear removes all blocks.
func (t *target) clear() {
	for _, e := range t.blocks {
		t.forget(e)
	}
	t.resize(-len(t.blocks))
	t.blocks, t.peak = make(map[kvevents.Hash]entry), 0
	t.lacks.Store(false)
}
