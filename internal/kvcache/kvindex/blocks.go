package kvindex

import (
	"maps"
	"sync"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
)

// shards is the number of locks for the blocks, so that requests and events seldom contend.
const shards = 64

type shard struct {
	mu     sync.RWMutex
	blocks map[Key]holders
	peak   int      // most blocks since the map was created
	_      [24]byte // a cache line for each lock
}

// blocks has the targets of each block of an index.
type blocks struct {
	shards [shards]shard
	memory *indexmem.Budget
}

// Memory of a block in bytes, estimated for Go's maps at their usual load.
const (
	entryBytes  = 55 // in each target that has it
	sharedBytes = 55 // in the index
)

func (b *blocks) init(memory *indexmem.Budget) {
	b.memory = memory
	for i := range b.shards {
		b.shards[i].blocks = make(map[Key]holders)
	}
}

func (b *blocks) shard(k Key) *shard { return &b.shards[uint64(k)>>58] }

func (b *blocks) add(k Key, s slot) {
	sh := b.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h, ok := sh.blocks[k]
	before := h.size()
	h.add(s)
	sh.blocks[k] = h
	grown := h.size() - before
	if !ok {
		grown += sharedBytes
		sh.peak = max(sh.peak, len(sh.blocks))
	}
	b.memory.Add(indexmem.Blocks, int64(grown))
}

func (b *blocks) remove(k Key, s slot) {
	sh := b.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h, ok := sh.blocks[k]
	if !ok {
		return
	}
	before := h.size()
	if h.remove(s) {
		delete(sh.blocks, k)
		b.memory.Add(indexmem.Blocks, -sharedBytes-int64(before))
		sh.blocks, sh.peak = compact(sh.blocks, sh.peak)
	} else {
		sh.blocks[k] = h
	}
}

// compact returns a copy of a map with less than half of its former entries, since maps of Go do not shrink.
// peak is the most entries that it had.
func compact[K comparable, V any](m map[K]V, peak int) (map[K]V, int) {
	const small = 256
	if peak < small || len(m) >= peak/2 {
		return m, peak
	}
	smaller := make(map[K]V, len(m))
	maps.Copy(smaller, m)
	return smaller, len(m)
}

// keep returns the alive targets that have the block.
func (b *blocks) keep(k Key, slots *[64]slot, alive uint64) uint64 {
	sh := b.shard(k)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	h, ok := sh.blocks[k]
	if !ok {
		return 0
	}
	return h.among(slots, alive)
}
