// Package kvcache simulates the paged KV cache of one engine core. Blocks have a
// fixed number of tokens and are found by a hash of all tokens up to their end.
// A new block replaces the least recently used one that no request holds.
//
//	Take ──▶ hits + new blocks ──▶ Computed ──▶ Append ... ──▶ Free
//
// As in vLLM's block pool, a freed block keeps its contents until it is reused,
// the last block of a prompt is evicted first, and at least one token of a prompt
// is always computed.
package kvcache

import (
	"container/list"
	"slices"
	"sync"
)

// DefaultBlockSize is the default number of tokens in a block.
const DefaultBlockSize = 16

// Config describes a cache.
type Config struct {
	BlockSize int // tokens
	Blocks    int
	// Seed makes the hashes of one cache differ from those of another.
	Seed uint64
	// Notify is called for every change, in order and with the cache locked; may be nil.
	Notify func(Event)
}

// Event is a change of the blocks that can be found in the cache.
type Event struct {
	Stored bool     // false: removed
	Hashes []uint64 // of the blocks, in order
	Parent uint64   // of the first block stored, 0 for none
	Tokens []int    // of the blocks stored
	Salt   string   // of the prompt whose first block is the first of these
}

// Stats has the counters of a cache.
type Stats struct {
	Queries int64 // tokens looked up
	Hits    int64 // tokens found
	Blocks  int   // all blocks
	Held    int   // blocks that requests hold
}

// Cache is a KV cache, which New creates. It is safe for concurrent use.
type Cache struct {
	conf Config
	room chan struct{} // has an element after blocks were freed

	mu    sync.Mutex        // guards everything below
	found map[uint64]*block // by hash
	free  list.List         // blocks without holders; the first one is reused next
	stats Stats
}

type block struct {
	hash    uint64 // 0 for none
	holders int
	at      *list.Element // of the free list
}

// New returns an empty cache.
func New(conf Config) *Cache {
	c := &Cache{conf: conf, room: make(chan struct{}, 1), found: make(map[uint64]*block)}
	for range conf.Blocks {
		c.push(new(block))
	}
	return c
}

func (c *Cache) push(b *block) { b.at = c.free.PushBack(b) }

// Hold has the blocks of one prompt. It is not safe for concurrent use. Free may
// be called more than once.
type Hold struct {
	cache    *Cache
	blocks   []*block
	computed int    // number of blocks that lookups find, or find a copy of
	last     uint64 // hash of the last computed block
	salt     string
	tokens   []int // tokens after the computed blocks
	own      bool  // tokens is a copy, not a part of the caller's prompt
	cached   int
}

// Cached returns the number of tokens that were found.
func (h *Hold) Cached() int { return h.cached }

func (c *Cache) blocksOf(tokens int) int { return (tokens + c.conf.BlockSize - 1) / c.conf.BlockSize }

// Room returns a channel that has an element after blocks were freed.
func (c *Cache) Room() <-chan struct{} { return c.room }

// Peek returns the number of tokens of a prompt that would be found now.
func (c *Cache) Peek(ids []int, salt string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, _ := c.lookup(ids, salt)
	return len(found) * c.conf.BlockSize
}

// lookup returns the cached blocks of a prompt, whose last token is always computed,
// and the hash of the last block. c.mu is held.
func (c *Cache) lookup(ids []int, salt string) (found []*block, last uint64) {
	size, last := c.conf.BlockSize, c.root(salt)
	for at := 0; at+size < len(ids); at += size {
		hash := chain(last, ids[at:at+size])
		b, ok := c.found[hash]
		if !ok {
			break
		}
		found, last = append(found, b), hash
	}
	return found, last
}

// TryTake holds the blocks of a prompt: the cached ones, and new ones for the rest.
// It returns nil if too few blocks are free.
func (c *Cache) TryTake(ids []int, salt string) *Hold {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := c.conf.BlockSize
	h := &Hold{cache: c, salt: salt}
	h.blocks, h.last = c.lookup(ids, salt)
	hits, free := len(h.blocks), c.free.Len()
	for _, b := range h.blocks {
		if b.holders == 0 {
			free--
		}
	}
	if c.blocksOf(len(ids))-hits > free {
		return nil
	}
	h.computed, h.cached = hits, hits*size
	c.stats.Queries += int64(len(ids))
	c.stats.Hits += int64(h.cached)
	for _, b := range h.blocks {
		if b.holders == 0 {
			c.free.Remove(b.at)
		}
		b.holders++
	}
	h.grow(c.blocksOf(len(ids)))
	h.tokens = ids[h.cached:]
	return h
}

// root returns the parent hash of a prompt's first block.
func (c *Cache) root(salt string) uint64 {
	h := c.conf.Seed
	for i := range len(salt) {
		h = mix(h, uint64(salt[i])+1)
	}
	return h
}

// grow extends h to n blocks, or fewer if no more are free; c.mu is held.
func (h *Hold) grow(n int) {
	c := h.cache
	var evicted []uint64
	for len(h.blocks) < n && c.free.Len() > 0 {
		b := c.free.Remove(c.free.Front()).(*block) //nolint:forcetypeassert // of push
		if b.hash != 0 {
			delete(c.found, b.hash)
			evicted = append(evicted, b.hash)
		}
		b.hash, b.holders = 0, 1
		h.blocks = append(h.blocks, b)
	}
	if evicted != nil {
		c.notify(Event{Hashes: evicted})
	}
}

func (c *Cache) notify(e Event) {
	if c.conf.Notify != nil {
		c.conf.Notify(e)
	}
}

// Computed lets lookups find the full blocks of the prompt.
func (h *Hold) Computed() {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	h.register()
}

// register lets lookups find the full blocks; the cache is locked.
func (h *Hold) register() {
	c, size := h.cache, h.cache.conf.BlockSize
	first := h.computed == 0
	e := Event{Stored: true, Parent: h.last}
	if first {
		e.Parent, e.Salt = 0, h.salt
	}
	flush := func() {
		if e.Hashes != nil {
			c.notify(e)
		}
	}
	for len(h.tokens) >= size && h.computed < len(h.blocks) {
		hash := chain(h.last, h.tokens[:size])
		if _, twice := c.found[hash]; twice {
			flush() // another request stored this block first, so the run ends here
			e = Event{Stored: true, Parent: hash}
		} else {
			b := h.blocks[h.computed]
			b.hash, c.found[hash] = hash, b
			e.Hashes = append(e.Hashes, hash)
			e.Tokens = append(e.Tokens, h.tokens[:size]...)
		}
		h.last, h.tokens = hash, h.tokens[size:]
		h.computed++
	}
	flush()
}

// Append adds generated tokens. Tokens without a free block are not cached.
func (h *Hold) Append(ids ...int) {
	if !h.own {
		h.tokens, h.own = slices.Clone(h.tokens), true
	}
	h.tokens = append(h.tokens, ids...)
	n := h.cache.blocksOf(h.computed*h.cache.conf.BlockSize + len(h.tokens))
	full := len(h.tokens) >= h.cache.conf.BlockSize
	if n <= len(h.blocks) && !full {
		return
	}
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	h.grow(n)
	h.register()
}

// Free releases the blocks. Lookups find them until they are reused.
func (h *Hold) Free() {
	c := h.cache
	c.mu.Lock()
	for _, b := range slices.Backward(h.blocks) {
		if b.holders--; b.holders == 0 {
			c.push(b)
		}
	}
	h.blocks = nil
	c.mu.Unlock()
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// Stats returns the current counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Blocks, s.Held = c.conf.Blocks, c.conf.Blocks-c.free.Len()
	return s
}

// chain returns the hash of a block that follows another.
func chain(parent uint64, ids []int) uint64 {
	h := mix(parent, uint64(len(ids)))
	for _, id := range ids {
		h = mix(h, uint64(id))
	}
	return max(h, 1) // 0 is none
}

func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0xff51afd7ed558ccd
	return h ^ h>>32
}
