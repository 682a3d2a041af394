package prefix

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
)

// chain returns the borders of a text that is added in parts.
func chain(model string, parts ...string) *Chain {
	var c Chain
	c.Start(model)
	for _, p := range parts {
		c.Add([]byte(p))
	}
	return &c
}

// text returns the given number of bytes, which differ for each n.
func text(n, bytes int) string {
	rng := rand.New(rand.NewPCG(uint64(n), 5))
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(rng.IntN(256))
	}
	return string(b)
}

func TestBlockBoundaries_ByPosition(t *testing.T) {
	t.Parallel()
	whole := text(1, 300_000)
	a := chain("m", whole)
	if got := chain("m", whole[:1], whole[1:77_777], "", whole[77_777:]); !slices.Equal(got.keys, a.keys) || got.Total() != a.Total() || got.Key(a.Len()) != a.Key(a.Len()) {
		t.Error("parts have other borders than the whole")
	}
	for _, n := range []int{0, 255, 256, 20_000, 123_456} {
		b := chain("m", whole[:n]+text(2, 50_000))
		same := 0
		for same < b.Len() && b.keys[same] == a.keys[same] {
			same++
		}
		got := a.End(same)
		assert.True(t, got <= n && n-got <= max(shortest, n/fineness), "of %d bytes in common %d are found", n, got)
	}
	assert.NotEqual(t, a.keys[0], chain("other", whole).keys[0], "prompts of two models have something in common")
	n := a.Len()
	assert.LessOrEqual(t, n, 300, "%d borders", n)
	if short := chain("m", "abc"); short.Len() != 0 || short.Key(0) == chain("m", "abd").Key(0) || short.Total() != 3 || short.End(0) != 0 {
		t.Errorf("%+v", short)
	}
}

// model is the simplest possible Index.
type model struct {
	held   []map[Key]*when
	now    int
	after  map[Key]Key // the first successor
	forked map[Key]bool
}

type when struct{ at, bytes int }

func (m *model) note(t int, c *Chain, capacity int) {
	total := 0
	for i := c.Len() - 1; i >= 0; i-- {
		m.now++
		m.held[t][c.keys[i]] = &when{m.now, c.End(i+1) - c.End(i)}
		if i+1 < c.Len() {
			if m.after[c.keys[i]] == 0 {
				m.after[c.keys[i]] = c.keys[i+1]
			}
			m.forked[c.keys[i]] = m.forked[c.keys[i]] || m.after[c.keys[i]] != c.keys[i+1]
		}
	}
	for _, u := range m.held[t] {
		total += u.bytes
	}
	for total > capacity {
		var oldest Key
		first := true
		for k, u := range m.held[t] {
			if first || u.at < m.held[t][oldest].at {
				oldest, first = k, false
			}
		}
		total -= m.held[t][oldest].bytes
		delete(m.held[t], oldest)
	}
}

// forget removes the successors of borders that no target has any more.
func (m *model) forget() {
	for key := range m.after {
		if !slices.ContainsFunc(m.held, func(held map[Key]*when) bool { return held[key] != nil }) {
			delete(m.after, key)
			delete(m.forked, key)
		}
	}
}

func (m *model) own(c *Chain) int {
	for i := c.Len() - 1; i >= 0; i-- {
		if m.forked[c.keys[i]] {
			return i + 1
		}
	}
	return 0
}

func (m *model) longest(t int, c *Chain) int {
	for i, k := range c.keys {
		if m.held[t][k] == nil {
			return i
		}
	}
	return c.Len()
}

func TestIndex_AgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		x := NewIndex(indexmem.New(0))
		m := &model{after: map[Key]Key{}, forked: map[Key]bool{}}
		for range 3 + int(seed%2)*130 { // also with more than one word of targets
			require.Equal(t, len(m.held), x.Add(), "numbers in order")
			m.held = append(m.held, map[Key]*when{})
		}
		var prompts []*Chain
		for range 12 {
			base := ""
			if n := len(prompts); n > 0 && rng.IntN(3) > 0 {
				base = text(rng.IntN(3), 2000)
			}
			prompts = append(prompts, chain("m", base, text(100+rng.IntN(20), 256*rng.IntN(20))))
		}
		const capacity = 9000
		longest := make([]int, len(m.held))
		for step := range 400 {
			target, c := rng.IntN(len(m.held)), prompts[rng.IntN(len(prompts))]
			switch rng.IntN(20) {
			case 0:
				x.Clear(target)
				clear(m.held[target])
			case 1:
				x.Remove(target)
				clear(m.held[target])
				require.Equal(t, target, x.Add(), "the free place")
			default:
				x.Note(target, c, capacity)
				m.note(target, c, capacity)
			}
			m.forget()
			c = prompts[rng.IntN(len(prompts))]
			require.Equal(t, m.own(c), x.Lookup(c, longest),
				"seed %d, step %d: the text is its own from border", seed, step)
			for i := range m.held {
				require.Equal(t, m.longest(i, c), longest[i], "seed %d, step %d: borders of target %d", seed, step, i)
			}
		}
		borders := 0
		for i := range m.held {
			borders += len(m.held[i])
			x.Clear(i)
		}
		assert.True(t, x.Borders() == 0 && len(x.root) == 0 && x.bytes == 0 && x.memory.Used(indexmem.Prompts) == 0,
			"%d borders and %d nodes are left of %d, %d bytes", x.Borders(), len(x.root), borders, x.bytes)
	}
}

// TestIndex_Evict: the least recently used prompts are evicted, from their ends, until enough memory is free.
func TestIndex_Evict(t *testing.T) {
	t.Parallel()
	memory := indexmem.New(0)
	x := NewIndex(memory)
	a, b := x.Add(), x.Add()
	prompts := make([]*Chain, 30)
	for i := range prompts {
		prompts[i] = chain("m", text(10+i, 256*20))
		x.Note([]int{a, b}[i%2], prompts[i], 0)
		memory.Add(indexmem.Prompts, 4<<10) // the next tick
		memory.Add(indexmem.Prompts, -4<<10)
	}
	x.Note(a, prompts[0], 0) // used again
	all := x.Memory()
	assert.Equal(t, int64(all), memory.Used(indexmem.Prompts), "bytes reported of %d", all)
	each := int64(all) / 30
	for range 10 {
		tick, ok := x.Oldest()
		freed := x.Evict(tick, each)
		require.True(t, ok && freed >= each && freed <= 2*each, "freed %d bytes of a prompt of %d", freed, each)
	}
	assert.True(t, memory.Used(indexmem.Prompts) == int64(x.Memory()) && x.Memory() <= all-10*int(each),
		"%d bytes are left, %d reported", x.Memory(), memory.Used(indexmem.Prompts))
	longest := make([]int, 2)
	for i, c := range prompts {
		x.Lookup(c, longest)
		assert.Equal(t, i == 0 || i > 10, longest[a]+longest[b] > 0, "prompt %d is known", i)
	}
}

// TestIndex_Memory: the estimate is close to the real memory of the index, whatever the prompts.
func TestIndex_Memory(t *testing.T) { // not parallel: it reads the heap
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	long := make([]string, 20)
	for i := range long {
		long[i] = text(i, 100_000)
	}
	for name, prompt := range map[string]func(i int) (target int, c *Chain){
		"short":       func(i int) (int, *Chain) { return i % 8, chain("m", text(i, 300)) },
		"chats":       func(i int) (int, *Chain) { return i % 8, chain("m", text(i%200, 300*(1+i/200))) },
		"long":        func(i int) (int, *Chain) { return i % 8, chain("m", long[i%len(long)]) },
		"one system":  func(i int) (int, *Chain) { return i % 8, chain("m", text(1, 2000), text(i, 2000)) },
		"all targets": func(i int) (int, *Chain) { return i % 8, chain("m", text(i/8, 2000)) },
	} {
		x := NewIndex(indexmem.New(0))
		for range 8 {
			x.Add()
		}
		before := heap()
		for i := range 1500 {
			target, c := prompt(i)
			x.Note(target, c, 0)
		}
		took := heap() - before
		if part := float64(x.Memory()) / float64(took); part < .7 || part > 1.5 {
			t.Errorf("%s: %d bytes by the estimate, %d in truth (%.2f)", name, x.Memory(), took, part)
		}
		runtime.KeepAlive(x)
	}
}
