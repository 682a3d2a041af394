package prefix

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// A prompt that one proxy has placed is found by another proxy
// that gets the chat's next turn, but not for another model.
func TestPlacements(t *testing.T) {
	t.Parallel()
	model := ModelHash("m")
	var own, other Placements
	first := chain("m", text(1, 20_000))
	place := func(p *Placements, c *Chain, target uint64, bytes int) {
		if placed, ok := c.Place(model, target, bytes); ok {
			p.Publish(placed)
		}
	}
	place(&own, first, 7, 20_000)
	assert.False(t, own.Waiting(), "a prompt is queued without other proxies")
	own.SetOthers(true)
	place(&own, chain("m", text(2, 500)), 7, 500) // too short to be published
	assert.False(t, own.Waiting(), "a prompt of two borders is published")
	place(&own, first, 7, 20_000)
	place(&own, chain("m", text(3, 30_000)), 8, 30_000)
	require.NoError(t, other.Read(own.Take(1<<10)))
	assert.True(t, !own.Waiting() && own.Take(1<<10) == nil, "it is published twice")
	list, _ := other.Since(0, ModelHash("another"))
	assert.Len(t, list, 0, "of another model")
	list, seen := other.Since(0, model)
	require.True(t, len(list) == 2 && list[0].Target == 8 && list[1].Target == 7 && list[1].Bytes == 20_000,
		"%+v", list)
	again, still := other.Since(seen, model)
	assert.True(t, len(again) == 0 && still == seen, "%v received again", again)

	x := NewIndex(indexmem.New(0))
	a, b := x.Add(), x.Add()
	x.AddRemote(a, &list[1])
	longest := make([]int, 2)
	look := func(c *Chain) []int {
		x.Lookup(c, longest)
		x.Deepest(c, longest)
		return longest
	}
	got := look(chain("m", text(1, 20_000), text(4, 9_000)))
	assert.True(t, got[a] == first.Len() && got[b] == 0, "the next turn: %v, want %d and 0", got, first.Len())
	// The prompt diverges within its last part.
	got = look(chain("m", text(1, 20_000)[:19_600], text(4, 9_000)))
	assert.True(t, got[a] >= first.Len()-2 && got[a] < first.Len(), "another end: %v of %d", got, first.Len())
	assert.Equal(t, 0, look(chain("m", text(5, 20_000)))[a], "a prompt that no proxy has placed")
	x.targets[a].capacity = 25_000
	x.AddRemote(a, &list[0])
	got = look(first)
	assert.True(t, got[a] == 0 && x.Bytes(a) <= 30_000, "%d bytes in a cache of 25,000, %v", x.Bytes(a), got)
}

// A prompt of another proxy counts once if this proxy sends it to the
// same target, too. Nothing of it remains when the target is cleared.
func TestRemoteAndNoted(t *testing.T) {
	t.Parallel()
	x := NewIndex(indexmem.New(0))
	a, b := x.Add(), x.Add()
	c := chain("m", text(1, 20_000))
	placed, ok := c.Place(ModelHash("m"), 7, c.Total())
	require.True(t, ok, "too short")
	for range 2 {
		x.AddRemote(a, &placed)
		x.AddRemote(b, &placed)
	}
	assert.True(t, x.Borders() == 2*tail && x.Bytes(a) == 20_000,
		"%d borders, %d bytes of a prompt that was added twice", x.Borders(), x.Bytes(a))
	x.Note(a, c, 0)
	if x.Held(a) != c.Len() || x.Bytes(a) != c.End(c.Len()) || x.Bytes(b) != 20_000 {
		t.Errorf("%d borders and %d bytes, want %d and %d; %d bytes of the other", x.Held(a), x.Bytes(a), c.Len(), c.End(c.Len()), x.Bytes(b))
	}
	x.Clear(a)
	longest := make([]int, 2)
	x.Deepest(c, longest)
	assert.Equal(t, 0, longest[a], "%v, want nothing of the one that was forgotten", longest)
	assert.Equal(t, c.Len(), longest[b], "%v, want nothing of the one that was forgotten", longest)
	x.Clear(b)
	assert.True(t, x.Borders() == 0 && len(x.root) == 0 && len(x.remote) == 0,
		"%d borders, %d nodes, %d keys are left", x.Borders(), len(x.root), len(x.remote))
}

// Prompts that differ only at the end share a border. A lookup of it, and the removal of one of them, must not
// read the others: with a long system prompt, that would be nearly all prompts of the fleet.
func TestRemote_SharedBorder(t *testing.T) {
	t.Parallel()
	x := NewIndex(indexmem.New(0))
	shared, longest := &Chain{keys: []Key{1}}, make([]int, 2)
	const prompts = 100
	for range longest {
		x.Add()
	}
	for i := range Key(prompts) {
		for target := range longest {
			x.AddRemote(target, &Placed{Keys: [tail]Key{1, 10 + 2*i, 11 + 2*i}})
		}
	}
	for n := prompts; n > 0; n-- {
		x.Deepest(shared, longest)
		assert.Len(t, x.remote[1], 2, "entries for %d prompts of two targets", n)
		assert.Equal(t, []int{1, 1}, longest, "%d prompts", n)
		x.forget(x.targets[0].oldest(), tail)
		clear(longest)
	}
	x.Deepest(shared, longest)
	assert.Equal(t, []int{0, 1}, longest, "the first target holds nothing")
}

// Messages and memory are bounded, and invalid messages are rejected.
func TestPlacementsBounds(t *testing.T) {
	t.Parallel()
	var own, other Placements
	own.SetOthers(true)
	for i := range 3 * maxPlaced {
		own.Publish(Placed{Model: 1, Target: uint64(i), Bytes: uint32(i)})
	}
	raw := own.Take(10*placedBytes + 5)
	assert.Len(t, raw, 1+10*placedBytes, "bytes, want those of 10 prompts")
	for range maxPlaced {
		require.NoError(t, other.Read(raw))
	}
	list, seen := other.Since(0, 1)
	assert.True(t, seen == 10*maxPlaced && len(list) <= 2*maxPlaced && len(list) >= maxPlaced,
		"%d of %d are kept", len(list), seen)
	var fresh Placements
	require.NoError(t, fresh.Read(raw))
	if list, _ := fresh.Since(0, 1); len(list) != 10 || list[0].Target != maxPlaced-1 { // the one with the most work, among the first
		t.Errorf("%d published, %+v comes first", len(list), list[0])
	}
	// An impossible number of bytes does not corrupt the sum of a target.
	fresh.SetOthers(true)
	fresh.Publish(Placed{Model: 2, Bytes: 1<<32 - 1, Keys: [tail]Key{1, 2, 3}})
	require.NoError(t, other.Read(fresh.Take(1<<10)))
	x := NewIndex(indexmem.New(0))
	x.Add()
	for _, p := range mustReceive(t, &other, 2) {
		x.AddRemote(0, &p)
	}
	x.Clear(0)
	assert.Equal(t, 0, x.Bytes(0), "%d bytes of nothing", x.Bytes(0))
	for _, bad := range [][]byte{{scheme + 1}, append([]byte{scheme}, make([]byte, placedBytes-1)...), {scheme, 1}} {
		assert.ErrorIs(t, other.Read(bad), ErrPlaced, "%d bytes", len(bad))
	}
	assert.NoError(t, other.Read(nil))
}

func mustReceive(t *testing.T, p *Placements, model uint32) []Placed {
	t.Helper()
	list, _ := p.Since(0, model)
	require.NotEqual(t, 0, len(list), "nothing was received")
	return list
}

// The counts of targets equal the sums of their contents, in whatever order
// prompts are noted, received and evicted. In the end, nothing remains.
func TestIndex_CountsInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(longform.Count(8, 20)) {
		rng := rand.New(rand.NewPCG(seed, 2))
		x := NewIndex(indexmem.New(0))
		const targets = 5
		for range targets {
			x.Add()
		}
		longest := make([]int, targets)
		for step := range 500 {
			base := text(rng.IntN(4), 256*rng.IntN(30))
			c := chain("m", base, text(10+rng.IntN(6), 256*rng.IntN(30)))
			target, capacity := rng.IntN(targets), 4000*rng.IntN(4)
			switch placed, ok := c.Place(1, 2, c.Total()); {
			case rng.IntN(30) == 0:
				x.Clear(target)
			case rng.IntN(20) == 0:
				x.Evict(x.memory.Now(), 500)
				capacity = 0
			case ok && rng.IntN(2) == 0:
				x.targets[target].capacity = capacity
				x.AddRemote(target, &placed)
			default:
				x.Note(target, c, capacity)
			}
			x.Lookup(c, longest)
			x.Deepest(c, longest)
			sum := 0
			for i := range targets {
				if sum += x.Held(i); x.Held(i) < 0 || x.Bytes(i) < 0 || longest[i] > c.Len() {
					t.Fatalf("seed %d, step %d: target %d holds %d borders and %d bytes, %d of %d", seed, step, i, x.Held(i), x.Bytes(i), longest[i], c.Len())
				}
			}
			if sum != x.Borders() || capacity > 0 && x.Bytes(target) > capacity {
				t.Fatalf("seed %d, step %d: %d borders, %d in all; %d bytes of %d", seed, step, sum, x.Borders(), x.Bytes(target), capacity)
			}
		}
		for i := range targets {
			x.Clear(i)
			assert.Equal(t, 0, x.Bytes(i), "seed %d: %d bytes of nothing", seed, x.Bytes(i))
		}
		if x.Borders() != 0 || len(x.root) != 0 || len(x.remote) != 0 || x.memory.Used(indexmem.Prompts) != 0 {
			t.Errorf("seed %d: %d borders, %d nodes, %d keys, %d bytes are left", seed, x.Borders(), len(x.root), len(x.remote), x.memory.Used(indexmem.Prompts))
		}
	}
}
