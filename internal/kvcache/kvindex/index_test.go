package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const size = 4

// prompt is a branch of a tree of prompts, so that prompts share prefixes.
type prompt struct {
	tokens     []uint32
	lora, salt string
}

func randomPrompt(rng *rand.Rand) prompt {
	p := prompt{lora: []string{"", "", "french"}[rng.IntN(3)], salt: []string{"", "", "tenant", "french"}[rng.IntN(4)]}
	for range rng.IntN(6) {
		branch := uint32(rng.IntN(2)) //nolint:gosec // 0 or 1
		for i := range uint32(size) {
			p.tokens = append(p.tokens, branch*100+i)
		}
	}
	for range rng.IntN(size) {
		p.tokens = append(p.tokens, 7)
	}
	return p
}

// name returns the reference's name of a block: everything that the block depends on.
func (p prompt) name(i int) string {
	return fmt.Sprint(p.lora, "/", p.salt, "/", p.tokens[:(i+1)*size])
}

func (p prompt) blocks() int { return len(p.tokens) / size }

func (p prompt) keys() []kvindex.Key { return kvindex.Chain(nil, p.tokens, size, p.lora, p.salt) }

// engine is a cache that publishes its events, and the reference.
type engine struct {
	target kvindex.Target
	seed   uint64
	groups int
	held   map[string][]bool // the groups that have it, by name
	live   bool
}

func (e *engine) hash(name string) kvevents.Hash {
	h := e.seed
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return kvevents.Hash(h)
}

func (e *engine) group(g int) int {
	if e.groups == 1 {
		return kvevents.Absent
	}
	return g
}

// event returns the event that stores blocks from..to of a prompt.
func (e *engine) event(t testing.TB, p prompt, from, to, group int) kvevents.Event {
	out := kvevents.Event{Kind: kvevents.Stored, BlockSize: size, LoRAID: kvevents.Absent, Group: e.group(group), LoRA: []byte(p.lora), Tokens: p.tokens[from*size : to*size]}
	if from > 0 {
		out.HasParent, out.Parent = true, e.hash(p.name(from-1))
	}
	for i := from; i < to; i++ {
		out.Hashes = append(out.Hashes, e.hash(p.name(i)))
		var extra []any
		if p.lora != "" {
			extra = append(extra, p.lora)
		}
		if i == 0 && p.salt != "" {
			extra = append(extra, p.salt)
		}
		var packed []byte
		if extra != nil {
			var err error
			packed, err = msgp.AppendIntf(nil, extra)
			require.NoError(t, err)
		}
		out.Extra = append(out.Extra, packed)
	}
	return out
}

// begin publishes a block of every group, so that all groups are known.
func (e *engine) begin(t testing.TB, x *kvindex.Index) {
	p := prompt{tokens: []uint32{9, 9, 9, 9}}
	for g := range e.groups {
		ev := e.event(t, p, 0, 1, g)
		ev.Spec = []byte("full_attention")
		x.Apply(e.target, &kvevents.Batch{Events: []kvevents.Event{ev}})
		e.store(p, 0, 1, g)
	}
}

func (e *engine) longest(p prompt) int {
	if !e.live {
		return kvindex.Unknown
	}
	for i := range p.blocks() {
		if have := e.held[p.name(i)]; have == nil || slices.Contains(have, false) {
			return i
		}
	}
	return p.blocks()
}

// step makes a random change to the cache and the index.
func (e *engine) step(t testing.TB, rng *rand.Rand, x *kvindex.Index) {
	apply := func(events ...kvevents.Event) { x.Apply(e.target, &kvevents.Batch{Events: events}) }
	switch p := randomPrompt(rng); rng.IntN(20) {
	case 0:
		x.Reset(e.target)
		clear(e.held)
		e.begin(t, x)
	case 1:
		x.Drop(e.target)
		clear(e.held)
		e.live = false
		e.begin(t, x) // events may still come
	case 2:
		apply(kvevents.Event{Kind: kvevents.Cleared})
		clear(e.held)
	case 3:
		e.live = !e.live
		x.SetLive(e.target, e.live)
	case 4: // events that must be ignored
		for _, change := range []func(*kvevents.Event){
			func(e *kvevents.Event) { e.Medium = []byte("CPU") },
			func(e *kvevents.Event) { e.Remote = true },
			func(e *kvevents.Event) { e.Spec, e.Group = []byte("sliding_window"), 5 },
			func(e *kvevents.Event) { e.Tokens = nil },
			func(e *kvevents.Event) { e.HasParent, e.Parent = true, 1 },
		} {
			ev := e.event(t, p, 0, p.blocks(), 0)
			ev.Spec = []byte("full_attention")
			change(&ev)
			apply(ev)
		}
	case 5, 6, 7, 8, 9: // evict something
		for name, have := range e.held {
			group := rng.IntN(e.groups)
			ev := kvevents.Event{Kind: kvevents.Removed, Hashes: []kvevents.Hash{e.hash(name), e.hash("never there")}, Medium: []byte("GPU"), Group: e.group(group)}
			apply(ev, ev)
			have[group] = false
			if !slices.Contains(have, true) {
				delete(e.held, name)
			}
			break
		}
	default:
		from := 0
		if n := p.blocks(); n > 0 {
			from = rng.IntN(n)
		}
		group := rng.IntN(e.groups)
		ev := e.event(t, p, from, p.blocks(), group)
		ev.Spec = []byte("full_attention")
		if from > 0 && e.held[p.name(from-1)] == nil {
			apply(ev) // its parent is unknown: the event is ignored
			return
		}
		apply(ev, ev) // announced twice
		e.store(p, from, p.blocks(), group)
	}
}

func (e *engine) store(p prompt, from, to, group int) {
	for i := from; i < to; i++ {
		if e.held[p.name(i)] == nil {
			e.held[p.name(i)] = make([]bool, e.groups)
		}
		e.held[p.name(i)][group] = true
	}
}

// TestReference: over random histories of several instances and
// ranks, the index equals the contents of the caches.
func TestReference(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		x := kvindex.New(nil)
		var engines []*engine
		var targets []kvindex.Target
		for i := range 70 { // more targets than bits in a word
			e := &engine{target: kvindex.Target{Address: fmt.Sprintf("10.0.0.%d:8000", i/2), Rank: i % 2}, seed: rng.Uint64(), groups: 1 + i%7/6, held: map[string][]bool{}}
			e.begin(t, x)
			engines = append(engines, e)
			targets = append(targets, e.target)
		}
		out := make([]int, len(targets))
		for range 600 {
			engines[rng.IntN(len(engines))].step(t, rng, x)
			p := randomPrompt(rng)
			x.Longest(p.keys(), targets, out)
			for i, e := range engines {
				if want := e.longest(p); out[i] != want {
					t.Fatalf("seed %d: %v has %d of %v, the index says %d", seed, e.target, want, p, out[i])
				}
			}
		}
		for _, e := range engines {
			want := 0
			for _, have := range e.held {
				if !slices.Contains(have, false) {
					want++
				}
			}
			assert.Equal(t, want, x.Stats(e.target).Blocks, "seed %d: blocks of %v", seed, e.target)
		}
	}
}

// If an engine restarts with smaller blocks, the index has the new size, and the groups of the new process.
func TestReset_OtherEngine(t *testing.T) {
	t.Parallel()
	x := kvindex.New(nil)
	target := kvindex.Target{}
	store := func(size, group int) {
		x.Apply(target, &kvevents.Batch{Events: []kvevents.Event{{
			Kind: kvevents.Stored, Hashes: []kvevents.Hash{1}, Tokens: make([]uint32, size), BlockSize: size, LoRAID: kvevents.Absent, Group: group, Spec: []byte("full_attention"),
		}}})
	}
	store(32, 0)
	store(32, 1)
	x.Reset(target)
	if store(16, 0); x.BlockSize(target) != 16 || x.Stats(target).Blocks != 1 {
		t.Errorf("block size %d, %d blocks", x.BlockSize(target), x.Stats(target).Blocks)
	}
	// A cleared cache still has its groups.
	store(16, 1)
	x.Apply(target, &kvevents.Batch{Events: []kvevents.Event{{Kind: kvevents.Cleared}}})
	store(16, 0)
	assert.Equal(t, 0, x.Stats(target).Blocks, "blocks count that one of two groups has")
}

// TestIndex_ConcurrentUse: requests query the index while events arrive and targets are
// dropped, under the race detector. The index is correct in the end.
func TestIndex_ConcurrentUse(t *testing.T) {
	t.Parallel()
	x := kvindex.New(nil)
	var engines []*engine
	var targets []kvindex.Target
	for i := range 8 {
		e := &engine{target: kvindex.Target{Address: fmt.Sprint(i)}, seed: uint64(i), groups: 1, held: map[string][]bool{}} //nolint:gosec // small
		engines = append(engines, e)
		targets = append(targets, e.target)
	}
	var changing, asking sync.WaitGroup
	done := make(chan struct{})
	for i := range 2 {
		asking.Go(func() {
			rng := rand.New(rand.NewPCG(9, uint64(i))) //nolint:gosec // small
			out := make([]int, len(targets))
			for {
				select {
				case <-done:
					return
				default:
				}
				x.Longest(randomPrompt(rng).keys(), targets, out)
			}
		})
	}
	for i, e := range engines {
		changing.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(i))) //nolint:gosec // small
			for range 1000 {
				e.step(t, rng, x)
			}
		})
	}
	changing.Wait()
	close(done)
	asking.Wait()
	rng := rand.New(rand.NewPCG(4, 4))
	out := make([]int, len(targets))
	for range 300 {
		p := randomPrompt(rng)
		x.Longest(p.keys(), targets, out)
		for i, e := range engines {
			want := e.longest(p)
			require.Equal(t, want, out[i], "%v has %d of %v, the index says %d", e.target, want, p, out[i])
		}
	}
}

// TestIndex_Memory: all targets together obey the limit. The first target gets no blocks above it,
// and keeps the start of its prompt; the second target gets its share at the expense of the first.
func TestIndex_Memory(t *testing.T) {
	t.Parallel()
	const limit, blocks = 256 << 10, 5000
	memory := indexmem.New(limit)
	x := kvindex.New(memory)
	first, second := kvindex.Target{Address: "a"}, kvindex.Target{Address: "b"}
	tokens := make([]uint32, blocks)
	for i := range tokens {
		tokens[i] = uint32(i) //nolint:gosec // small
	}
	// whole checks that the blocks of a target are the start of the prompt.
	whole := func(t *testing.T, of kvindex.Target) int {
		t.Helper()
		out := []int{0}
		x.Longest(kvindex.Chain(nil, tokens, 1, "", ""), []kvindex.Target{of}, out)
		s := x.Stats(of)
		assert.True(t, out[0] == s.Blocks && s.Full != 0 && !x.Complete(of), "%d blocks in a row, %+v", out[0], s)
		used := memory.Used(indexmem.Blocks)
		require.True(t, used <= limit, "%d bytes of %d", used, limit)
		return out[0]
	}
	fill(x, first, blocks)
	all := whole(t, first)
	assert.GreaterOrEqual(t, all, 2000, "%d blocks", all)
	fill(x, second, blocks)
	if a, b := whole(t, first), whole(t, second); a < all/2 || b < all/2 || memory.Evicted(indexmem.Blocks) == 0 {
		t.Errorf("%d and %d blocks, %d before", a, b, all)
	}
	x.Drop(first)
	x.Drop(second)
	used := memory.Used(indexmem.Blocks)
	assert.True(t, used == 0 && len(x.Targets()) == 0, "%d bytes are left", used)
}

// TestIndex_LendsMemory: prompts may use the memory that blocks
// do not need, and release it until blocks have half.
func TestIndex_LendsMemory(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	memory := indexmem.New(limit)
	x := kvindex.New(memory)
	prompts := &loan{memory: memory}
	memory.Register(indexmem.Prompts, prompts)
	memory.Add(indexmem.Prompts, 2*limit)
	memory.Enforce()
	used := memory.Used(indexmem.Prompts)
	assert.True(t, used <= limit && used >= limit*9/10, "prompts have %d bytes of %d", used, limit)
	fill(x, kvindex.Target{Address: "a"}, 20_000)
	a, b := memory.Used(indexmem.Prompts), memory.Used(indexmem.Blocks)
	assert.True(t, a+b <= limit && a >= limit*9/20 && b >= limit*9/20,
		"prompts have %d bytes and blocks %d, of %d", a, b, limit)
}

// loan is an index of prompts that only uses memory.
type loan struct{ memory *indexmem.Budget }

func (l *loan) Oldest() (tick uint32, ok bool) { return 0, l.memory.Used(indexmem.Prompts) > 0 }

func (l *loan) Evict(_ uint32, bytes int64) {
	l.memory.Add(indexmem.Prompts, -min(bytes, l.memory.Used(indexmem.Prompts)))
}

// TestImages: a block that depends on more than tokens differs from a block of the same tokens alone.
func TestImages(t *testing.T) {
	t.Parallel()
	x := kvindex.New(nil)
	e := &engine{target: kvindex.Target{Address: "a"}, groups: 1}
	p := prompt{tokens: make([]uint32, 3*size)}
	ev := e.event(t, p, 0, 3, 0)
	image, err := msgp.AppendIntf(nil, []any{[]any{"image", 3}})
	require.NoError(t, err)
	ev.Extra[1] = image
	x.SetLive(e.target, true)
	x.Apply(e.target, &kvevents.Batch{Events: []kvevents.Event{ev}})
	out := []int{0}
	x.Longest(p.keys(), []kvindex.Target{e.target}, out)
	assert.Equal(t, 1, out[0], "blocks")
}

// The names of adapters are bounded. A name that was dropped returns with the next block.
func TestAdaptersAreBounded(t *testing.T) {
	t.Parallel()
	x := kvindex.New(nil)
	e := &engine{target: kvindex.Target{Address: "a"}, groups: 1}
	store := func(lora string) {
		p := prompt{lora: lora, tokens: make([]uint32, size)}
		x.Apply(e.target, &kvevents.Batch{Events: []kvevents.Event{e.event(t, p, 0, 1, 0)}})
		require.True(t, x.Adapter(lora), "%s is not known", lora)
	}
	const most = 1 << 14
	for i := range most + 1 {
		store(fmt.Sprint(i))
	}
	assert.False(t, x.Adapter("0"), "0 is known")
	assert.True(t, x.Adapter(fmt.Sprint(most)), "0 is known")
	store("0")
}

func TestNoAllocations(t *testing.T) {
	x, targets, tokens := filled(4, 50)
	keys := make([]kvindex.Key, 0, 50)
	out := make([]int, len(targets))
	if n := testing.AllocsPerRun(100, func() {
		keys = kvindex.Chain(keys[:0], tokens, 16, "lora", "salt")
		x.Longest(keys, targets, out)
		x.Adapter("lora")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// filled returns an index whose targets all have one prompt of the given number of blocks.
func filled(n, blocks int) (*kvindex.Index, []kvindex.Target, []uint32) {
	x := kvindex.New(nil)
	tokens := make([]uint32, blocks*16)
	for i := range tokens {
		tokens[i] = uint32(i) //nolint:gosec // small
	}
	var targets []kvindex.Target
	for i := range n {
		t := kvindex.Target{Address: fmt.Sprintf("10.0.0.%d:8000", i)}
		targets = append(targets, t)
		x.SetLive(t, true)
		e := kvevents.Event{Kind: kvevents.Stored, Tokens: tokens, BlockSize: 16, Group: kvevents.Absent, LoRAID: kvevents.Absent}
		for i := range blocks {
			e.Hashes = append(e.Hashes, kvevents.Hash(i)) //nolint:gosec // small
		}
		x.Apply(t, &kvevents.Batch{Events: []kvevents.Event{e}})
	}
	return x, targets, tokens
}

// fill stores blocks of one token in a target, in batches of 100; each block's parent is the previous one.
func fill(x *kvindex.Index, t kvindex.Target, blocks int) {
	x.SetLive(t, true)
	for from := 0; from < blocks; from += 100 {
		e := kvevents.Event{Kind: kvevents.Stored, BlockSize: 1, Group: kvevents.Absent, LoRAID: kvevents.Absent, HasParent: from > 0}
		if from > 0 {
			e.Parent = kvevents.Hash(from - 1)
		}
		for i := from; i < from+100; i++ {
			e.Tokens, e.Hashes = append(e.Tokens, uint32(i)), append(e.Hashes, kvevents.Hash(i)) //nolint:gosec // small
		}
		x.Apply(t, &kvevents.Batch{Events: []kvevents.Event{e}})
	}
}
