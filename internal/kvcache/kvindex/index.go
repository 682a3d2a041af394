package kvindex

import (
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
)

// Target is one data-parallel rank of one instance.
type Target struct {
	Address string // host:port of the instance
	Rank    int
}

// Unknown is the result of Longest for a target whose blocks are not up to date.
const Unknown = -1

// Index records the targets of each block. A Budget bounds its memory. When that is used up, a target with at
// least its share of the blocks gets no more, so that the beginnings of its prompts stay complete. For a
// target with fewer, blocks of the largest targets are evicted. New creates an Index. It is safe for
// concurrent use, but the batches of one target must be applied one after the other.
type Index struct {
	memory  *indexmem.Budget
	blocks  blocks
	targets atomic.Pointer[map[Target]*target] // replaced, never changed
	held    atomic.Int64                       // entries of all targets

	adapters     sync.Map     // roots (Key) of the LoRA adapters that have had blocks
	adapterCount atomic.Int64 // approximate number of adapters

	mu   sync.Mutex // guards all below; held while targets is replaced
	free []slot
	next slot
}

// New returns an empty index that reports its memory to a Budget; if that is nil, to a separate one with the
// default limit.
func New(memory *indexmem.Budget) *Index {
	if memory == nil {
		memory = indexmem.New(0)
	}
	x := &Index{memory: memory}
	x.blocks.init(memory)
	x.targets.Store(&map[Target]*target{})
	memory.Register(indexmem.Blocks, x)
	return x
}

// Oldest implements indexmem.Evictor. Blocks have no order of use: engines report which blocks they store and
// remove, not which ones they use.
func (x *Index) Oldest() (tick uint32, ok bool) { return 0, x.memory.Used(indexmem.Blocks) > 0 }

// Evict implements indexmem.Evictor. The largest targets lose blocks until they have equal numbers, whatever
// the tick.
func (x *Index) Evict(_ uint32, bytes int64) {
	all := slices.SortedFunc(maps.Values(*x.targets.Load()), func(a, b *target) int { return int(b.held.Load() - a.held.Load()) })
	need, sum := (bytes+entryBytes-1)/entryBytes, int64(0)
	for i, t := range all {
		sum += t.held.Load()
		next := int64(0)
		if i+1 < len(all) {
			next = all[i+1].held.Load()
		}
		// Cutting the first i+1 targets to the size of the next one frees enough.
		if n := int64(i + 1); sum-n*next >= need || i+1 == len(all) {
			level := max(0, (sum-need)/n)
			for _, t := range all[:i+1] {
				t.shrink(int(level))
			}
			return
		}
	}
}

// share returns the average number of blocks of a target. It is called for each new block while the memory is
// used up.
func (x *Index) share() int { return int(x.held.Load()) / max(1, len(*x.targets.Load())) }

func (x *Index) lookup(t Target) *target { return (*x.targets.Load())[t] }

// target returns the state of a target, creating it if necessary. It returns nil if the
// index already has 65,536 targets.
func (x *Index) target(t Target) *target {
	if known := x.lookup(t); known != nil {
		return known
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if known := x.lookup(t); known != nil {
		return known
	}
	var s slot
	switch n := len(x.free); {
	case n > 0:
		s, x.free = x.free[n-1], x.free[:n-1]
	case x.next == ^slot(0):
		return nil
	default:
		s = x.next
		x.next++
	}
	made := &target{slot: s, blocks: make(map[kvevents.Hash]entry), index: x}
	x.replace(func(all map[Target]*target) { all[t] = made })
	return made
}

// replace replaces the targets by a changed copy. The caller holds mu.
func (x *Index) replace(change func(map[Target]*target)) {
	all := maps.Clone(*x.targets.Load())
	change(all)
	x.targets.Store(&all)
}

// Apply applies a batch of a target's events. It is idempotent.
func (x *Index) Apply(t Target, b *kvevents.Batch) {
	known := x.target(t)
	if known == nil {
		return
	}
	defer x.memory.Enforce()
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.dropped {
		return
	}
	for i := range b.Events {
		known.event(&b.Events[i])
	}
}

// Reset removes all blocks of a target, its block size and its groups, but keeps the target: its engine may
// have restarted with different ones.
func (x *Index) Reset(t Target) {
	if known := x.lookup(t); known != nil {
		known.mu.Lock()
		defer known.mu.Unlock()
		known.clear()
		known.blockSize.Store(0)
		known.groups = 0
	}
}

// SetLive sets whether the blocks of a target are up to date. While they are not, as at first, Longest
// returns Unknown.
func (x *Index) SetLive(t Target, live bool) {
	if known := x.target(t); known != nil {
		known.live.Store(live)
	}
}

// Drop removes a target.
func (x *Index) Drop(t Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	known := x.lookup(t)
	if known == nil {
		return
	}
	x.replace(func(all map[Target]*target) { delete(all, t) })
	known.mu.Lock()
	defer known.mu.Unlock()
	known.clear()
	known.dropped = true
	x.free = append(x.free, known.slot) // nothing refers to it any more
}

// BlockSize returns the block size of a target in tokens; 0 until it has stored a block.
func (x *Index) BlockSize(t Target) int {
	if known := x.lookup(t); known != nil {
		return int(known.blockSize.Load())
	}
	return 0
}

// maxAdapters bounds the LoRA adapters. Beyond it, all are dropped; each returns with its next block.
const maxAdapters = 1 << 14

// addAdapter records a LoRA adapter that has a block.
func (x *Index) addAdapter(root Key) {
	if _, known := x.adapters.Load(root); known {
		return
	}
	if x.adapterCount.Add(1) > maxAdapters {
		x.adapters.Clear()
		x.adapterCount.Store(1)
	}
	x.adapters.Store(root, true)
}

// Adapter reports whether any target has stored blocks of a LoRA adapter with this name, if it was not
// dropped since.
func (x *Index) Adapter(name string) bool {
	_, ok := x.adapters.Load(root(name))
	return ok
}

// SetComplete sets whether all events of a target were applied; see Complete. A new target is complete.
func (x *Index) SetComplete(t Target, complete bool) {
	if known := x.target(t); known != nil {
		known.lacks.Store(!complete)
	}
}

// Complete reports whether the index has all blocks of a target: then a block that Longest does not find is
// not in the cache. If an engine has published more than its replay keeps, blocks are missing, with all their
// successors.
func (x *Index) Complete(t Target) bool {
	known := x.lookup(t)
	return known != nil && !known.lacks.Load()
}

// Stats is the state of one target in the index.
type Stats struct {
	Blocks  int // number of counted blocks
	Live    bool
	Orphans uint64 // blocks left out because their predecessor was unknown
	Full    uint64 // blocks left out or evicted because the memory was used up
}

// Stats returns the state of a target, the zero Stats if it is unknown.
func (x *Index) Stats(t Target) Stats {
	known := x.lookup(t)
	if known == nil {
		return Stats{}
	}
	return Stats{
		Blocks: int(known.counted.Load()), Live: known.live.Load(),
		Orphans: known.orphans.Load(), Full: known.full.Load(),
	}
}

// Targets returns the known targets in no particular order.
func (x *Index) Targets() []Target {
	return slices.Collect(maps.Keys(*x.targets.Load()))
}

// Longest sets out, for each target, to the number of leading keys that it has without a gap, or to Unknown.
// It does not allocate. The keys are a Chain with the block size of these targets.
func (x *Index) Longest(keys []Key, targets []Target, out []int) {
	for len(targets) > 0 {
		n := min(64, len(targets))
		x.longest(keys, targets[:n], out[:n])
		targets, out = targets[n:], out[n:]
	}
}

func (x *Index) longest(keys []Key, targets []Target, out []int) {
	all := *x.targets.Load()
	var slots [64]slot
	var alive uint64
	for i, t := range targets {
		known := all[t]
		if known == nil || !known.live.Load() {
			out[i] = Unknown
			continue
		}
		slots[i] = known.slot
		out[i] = len(keys)
		alive |= 1 << i
	}
	for depth, k := range keys {
		if alive == 0 {
			return
		}
		left := x.blocks.keep(k, &slots, alive)
		for ended := alive &^ left; ended != 0; ended &= ended - 1 {
			out[bits.TrailingZeros64(ended)] = depth
		}
		alive = left
	}
}
