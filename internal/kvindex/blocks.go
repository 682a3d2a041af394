package kvindex

import "sync"

// shards spread the blocks over locks, so that requests and events seldom meet.
const shards = 64

type shard struct {
	mu     sync.RWMutex
	blocks map[Key]holders
	_      [32]byte // a lock has a cache line for itself
}

// blocks knows for each block of an index which targets have it.
type blocks struct{ shards [shards]shard }

func (b *blocks) init() {
	for i := range b.shards {
		b.shards[i].blocks = make(map[Key]holders)
	}
}

func (b *blocks) shard(k Key) *shard { return &b.shards[uint64(k)>>58] }

func (b *blocks) add(k Key, s slot) {
	sh := b.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.blocks[k]
	h.add(s)
	sh.blocks[k] = h
}

func (b *blocks) remove(k Key, s slot) {
	sh := b.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h, ok := sh.blocks[k]
	if !ok {
		return
	}
	if h.remove(s) {
		delete(sh.blocks, k)
	} else {
		sh.blocks[k] = h
	}
}

// keep leaves of the alive ones those that have the block.
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
