// Package indexmem bounds the memory of all indexes that help to choose an instance: those of prompts, one
// for each role and model, and that of KV blocks.
//
// They share one limit in bytes. Each kind of index is guaranteed half of it, and may use the part that the
// other kind leaves. Prompts are evicted least recently used first, over all roles and models; package
// kvindex describes the eviction of blocks.
package indexmem

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Kind is a kind of index.
type Kind int

// The kinds.
const (
	Prompts Kind = iota
	Blocks
	kinds
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{Prompts, Blocks} }

// String returns the name of a kind, as in metrics.
func (k Kind) String() string { return [...]string{"prompts", "kv_blocks"}[k] }

const (
	// DefaultLimit is the limit of a Budget in bytes.
	DefaultLimit = 512 << 20
	// slack is the divisor of the limit for the bytes freed in addition, so that not every addition evicts.
	slack = 1024
	// tickBytes is the resolution of the clock: a tick is the time in which this many bytes are added.
	tickBytes = 4 << 10
	// share is the divisor of the time since the oldest prompt was used: one sweep evicts this part.
	share = 64
)

// Evictor is an index whose memory is bounded. It must be safe for concurrent use, and must
// not call Enforce while it holds a lock that Evict needs.
type Evictor interface {
	// Oldest returns the tick in which the least recently used part was used; ok is false if
	// there is none.
	Oldest() (tick uint32, ok bool)
	// Evict frees at least the given number of bytes, if enough parts were last used in a tick up to until;
	// see Before. It reports the freed bytes by Budget.Add.
	Evict(until uint32, bytes int64)
}

// Budget is the limit that indexes share. New creates it. It is safe for concurrent use.
type Budget struct {
	limit   int64
	used    [kinds]atomic.Int64
	evicted [kinds]atomic.Int64
	added   atomic.Uint64 // bytes added so far: the clock

	mu      sync.Mutex // guards all below; held during Evict, and never taken with a lock of an Evictor held
	members [kinds][]Evictor
	next    int // next member of the sweep over prompts, which evicts parts up to until
	until   uint32
}

// New returns a Budget with a limit in bytes; 0 means DefaultLimit.
func New(limit int64) *Budget {
	return &Budget{limit: cmp.Or(limit, DefaultLimit)}
}

// Register adds an index of a kind. Unregister removes it.
func (b *Budget) Register(k Kind, e Evictor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[k] = append(b.members[k], e)
}

// Unregister removes an index, which must have reported that its memory is free.
func (b *Budget) Unregister(k Kind, e Evictor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[k] = slices.DeleteFunc(b.members[k], func(other Evictor) bool { return other == e })
}

// Add records that an index uses more memory than before, or less if bytes is negative.
func (b *Budget) Add(k Kind, bytes int64) {
	b.used[k].Add(bytes)
	if bytes > 0 {
		b.added.Add(uint64(bytes))
	}
}

// Now returns the present tick. Ticks wrap around; compare them by Before.
func (b *Budget) Now() uint32 { return uint32(b.added.Load() / tickBytes) } //nolint:gosec // it may wrap around

// Before reports whether tick a is not after tick b.
func Before(a, b uint32) bool { return int32(b-a) >= 0 } //nolint:gosec // the difference of two that wrap around

// Limit returns the limit in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes that indexes of a kind use.
func (b *Budget) Used(k Kind) int64 { return b.used[k].Load() }

// Evicted returns the bytes of a kind that were evicted because of the limit so far.
func (b *Budget) Evicted(k Kind) int64 { return b.evicted[k].Load() }

// Full reports whether a kind has no memory left for more bytes, even if the other kind shrinks to its half.
func (b *Budget) Full(k Kind, bytes int64) bool {
	return b.over()+bytes > 0 && b.used[k].Load()+bytes > b.limit/2
}

func (b *Budget) over() int64 { return b.used[Prompts].Load() + b.used[Blocks].Load() - b.limit }

// Enforce evicts until the limit is kept. It is called after an addition, without a lock held.
func (b *Budget) Enforce() {
	if b.over() <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range []Kind{Blocks, Prompts} {
		over := b.over()
		if over <= 0 {
			return
		}
		before := b.used[k].Load()
		if bytes := min(over+b.limit/slack, before-b.limit/2); bytes > 0 {
			b.evict(k, bytes)
			b.evicted[k].Add(max(0, before-b.used[k].Load()))
		}
	}
}

// evict frees bytes of a kind. The caller holds mu.
func (b *Budget) evict(k Kind, bytes int64) {
	target := b.used[k].Load() - bytes
	left := func() int64 { return b.used[k].Load() - target }
	if k == Blocks {
		for _, e := range b.members[k] {
			e.Evict(b.Now(), left())
		}
		return
	}
	for left() > 0 {
		if b.next >= len(b.members[k]) && !b.sweep(k) {
			return
		}
		e := b.members[k][b.next]
		e.Evict(b.until, left())
		if left() > 0 {
			b.next++
		}
	}
}

// sweep begins a sweep over the members, and reports whether there is anything to evict. Sweeps replace one
// list in the order of use, which would need one lock for all members. The caller holds mu.
func (b *Budget) sweep(k Kind) bool {
	now := b.Now()
	oldest, some := now, false
	for _, e := range b.members[k] {
		if tick, ok := e.Oldest(); ok {
			some = true
			if Before(tick, oldest) {
				oldest = tick
			}
		}
	}
	b.next, b.until = 0, oldest+(now-oldest)/share
	return some
}
