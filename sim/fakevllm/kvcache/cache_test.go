package kvcache_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
)

// ids returns n tokens that differ between seeds.
func ids(seed, n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = seed*1000 + i
	}
	return s
}

// run computes a prompt, frees its blocks, and returns the number of tokens that were found.
func run(t *testing.T, c *kvcache.Cache, prompt []int) int {
	t.Helper()
	h := c.TryTake(prompt, "")
	if h == nil {
		t.Fatalf("no room for %d tokens: %+v", len(prompt), c.Stats())
	}
	h.Computed()
	h.Free()
	return h.Cached()
}

func TestHits(t *testing.T) {
	t.Parallel()
	a := ids(1, 40)
	for _, tt := range []struct {
		name   string
		prompt []int
		hits   int
	}{
		{"the same prompt", a, 32},
		{"whole blocks, of which the last token is computed", a[:32], 16},
		{"whole blocks and one token", a[:33], 32},
		{"a longer one", append(slices.Clone(a), ids(2, 40)...), 32},
		{"another end", append(slices.Clone(a[:20]), ids(3, 40)...), 16},
		{"another beginning", append([]int{7}, a...), 0},
		{"less than a block", a[:15], 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := kvcache.New(kvcache.Config{BlockSize: 16, Blocks: 100})
			run(t, c, a)
			assert.Equal(t, tt.hits, c.Peek(tt.prompt, ""), "tokens would be found")
			assert.Equal(t, tt.hits, run(t, c, tt.prompt), "tokens found")
			if s := c.Stats(); s.Held != 0 || s.Hits != int64(tt.hits) || s.Queries != int64(len(a)+len(tt.prompt)) {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestCache_FindsOnlyComputed(t *testing.T) {
	t.Parallel()
	c := kvcache.New(kvcache.Config{BlockSize: 16, Blocks: 10})
	first, second := c.TryTake(ids(1, 33), ""), c.TryTake(ids(1, 33), "")
	assert.Equal(t, 0, second.Cached(), "tokens found that were not computed")
	first.Computed()
	second.Computed() // the same blocks again: the first ones remain
	first.Free()
	second.Free()
	assert.Equal(t, 32, run(t, c, ids(1, 33)), "tokens found")
}

// TestLeastRecentlyUsed: the oldest prompt is evicted first, beginning with its last block.
func TestLeastRecentlyUsed(t *testing.T) {
	t.Parallel()
	c := kvcache.New(kvcache.Config{BlockSize: 16, Blocks: 9})
	a, b, d := ids(1, 48), ids(2, 48), ids(3, 48)
	run(t, c, a)
	run(t, c, b)
	run(t, c, d)
	if got := run(t, c, a); got != 32 { // used again: now b is the oldest
		t.Fatalf("%d tokens of a found, not 32", got)
	}
	run(t, c, ids(4, 20)) // takes two blocks: the copy of a's third, which no lookup finds, and b's third
	assert.Equal(t, 16, run(t, c, b[:32]), "tokens of b found")
	assert.Equal(t, 32, run(t, c, d), "tokens of d found")
}

func TestCacheFull(t *testing.T) {
	t.Parallel()
	c := kvcache.New(kvcache.Config{BlockSize: 16, Blocks: 4})
	a := c.TryTake(ids(1, 48), "")
	h := c.TryTake(ids(2, 32), "")
	require.True(t, h == nil, "two blocks were given out of one")
	s := c.Stats()
	assert.True(t, s.Queries == 48 && s.Held == 3, "a prompt without room was counted: %+v", s)
	a.Free()
	a.Free()
	select {
	case <-c.Room():
	default:
		t.Error("no notice of the free blocks")
	}
	h = c.TryTake(ids(2, 64), "")
	assert.True(t, h != nil, "no room in an empty cache")
}

// TestEvents: the events determine which blocks can be found.
func TestEvents(t *testing.T) {
	t.Parallel()
	known := map[uint64][]int{} // by hash
	parents := map[uint64]uint64{}
	c := kvcache.New(kvcache.Config{BlockSize: 4, Blocks: 12, Seed: 5, Notify: func(e kvcache.Event) {
		if !e.Stored {
			for _, h := range e.Hashes {
				if _, ok := known[h]; !ok {
					t.Errorf("block %d is removed, but was never stored", h)
				}
				delete(known, h)
			}
			return
		}
		assert.Equal(t, 4*len(e.Hashes), len(e.Tokens), "tokens for %d blocks", len(e.Hashes))
		if _, ok := known[e.Parent]; e.Parent != 0 && !ok {
			t.Errorf("parent %d is not known", e.Parent)
		}
		parent := e.Parent
		for i, h := range e.Hashes {
			if _, twice := known[h]; twice {
				t.Errorf("block %d is stored twice", h)
			}
			known[h], parents[h] = e.Tokens[4*i:4*i+4], parent
			parent = h
		}
	}})
	for i := range 60 {
		prompt := append(ids(i%3, 9), ids(10+i%7, 8)...)
		want := 0
		for at, parent := 0, uint64(0); at+4 < len(prompt); at += 4 {
			found := uint64(0)
			for h, tokens := range known {
				if parents[h] == parent && slices.Equal(tokens, prompt[at:at+4]) {
					found = h
				}
			}
			if found == 0 {
				break
			}
			want, parent = want+4, found
		}
		got := run(t, c, prompt)
		require.Equal(t, want, got, "request %d: %d tokens found, the events promised %d", i, got, want)
	}
}
