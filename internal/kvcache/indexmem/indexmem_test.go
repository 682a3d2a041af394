package indexmem_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// index is the simplest Evictor: parts of different sizes, the least recently used first.
type index struct {
	budget *indexmem.Budget
	kind   indexmem.Kind

	mu    sync.Mutex
	parts []part
}

type part struct {
	name, bytes int
	used        uint32
}

func (x *index) add(name, bytes int) {
	x.mu.Lock()
	x.parts = append(x.parts, part{name, bytes, x.budget.Now()})
	x.budget.Add(x.kind, int64(bytes))
	x.mu.Unlock()
	x.budget.Enforce()
}

func (x *index) Oldest() (tick uint32, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.parts) == 0 {
		return 0, false
	}
	return x.parts[0].used, true
}

func (x *index) Evict(until uint32, bytes int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.parts) > 0 && bytes > 0 && indexmem.Before(x.parts[0].used, until) {
		bytes -= int64(x.parts[0].bytes)
		x.budget.Add(x.kind, -int64(x.parts[0].bytes))
		x.parts = x.parts[1:]
	}
}

func (x *index) names() (out []int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.parts {
		out = append(out, p.name)
	}
	return out
}

// TestBudget_EvictsAcrossIndexes: parts of all indexes are evicted
// roughly in the order of their use, and only as many as necessary.
func TestBudget_EvictsAcrossIndexes(t *testing.T) {
	t.Parallel()
	const limit, each, all = 1 << 20, 4 << 10, 2000 // one tick per part
	b := indexmem.New(limit)
	indexes := make([]*index, 20)
	for i := range indexes {
		indexes[i] = &index{budget: b}
		b.Register(indexmem.Prompts, indexes[i])
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for name := range all {
		indexes[rng.IntN(len(indexes))].add(name, each)
		used := b.Used(indexmem.Prompts)
		require.True(t, used <= limit && (name <= 300 || used >= limit*98/100), "%d bytes of %d", used, limit)
	}
	var left []int
	for _, x := range indexes {
		left = append(left, x.names()...)
	}
	slices.Sort(left)
	// A sweep evicts one share of the ticks at once, so the order may differ within that share.
	if n, kept := len(left), limit/each; n > kept || n < kept*98/100 || left[0] < all-kept-kept/10 {
		t.Errorf("%d parts are left, the oldest is %d of %d", n, left[0], all)
	}
	assert.Equal(t, int64(all*each)-b.Used(indexmem.Prompts), b.Evicted(indexmem.Prompts), "bytes evicted")
	// One tick later, the first ones are evicted, and the clock has wrapped around.
	for _, x := range indexes {
		x.Evict(b.Now(), limit)
		b.Unregister(indexmem.Prompts, x)
	}
	b.Add(indexmem.Prompts, 2*limit)
	b.Enforce() // without an index
	assert.EqualValues(t, 2*limit, b.Used(indexmem.Prompts), "bytes")
}

// TestBefore: ticks wrap around.
func TestBefore(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b uint32
		want bool
	}{{1, 2, true}, {2, 2, true}, {3, 2, false}, {1<<32 - 1, 5, true}, {5, 1<<32 - 1, false}} {
		assert.Equal(t, tc.want, indexmem.Before(tc.a, tc.b), "Before(%d, %d)", tc.a, tc.b)
	}
}

// TestBudget_Concurrent: the limit holds after many goroutines have added all their parts.
func TestBudget_Concurrent(t *testing.T) {
	t.Parallel()
	b := indexmem.New(1 << 20)
	var work sync.WaitGroup
	for i := range 8 {
		x := &index{budget: b, kind: indexmem.Kinds()[i%2]}
		b.Register(x.kind, x)
		work.Go(func() {
			for n := range 1000 {
				x.add(n, 1<<10)
			}
		})
	}
	work.Wait()
	p, k := b.Used(indexmem.Prompts), b.Used(indexmem.Blocks)
	assert.True(t, p+k <= b.Limit() && p >= b.Limit()*4/10 && k >= b.Limit()*4/10,
		"%d and %d bytes of %d", p, k, b.Limit())
}
