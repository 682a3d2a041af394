package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
)

// tokens splits a text into tokens of one to eight bytes. The split depends on the
// surrounding bytes, so that the last tokens of a text change if it continues.
func tokens(s string) []uint32 {
	var out []uint32
	h := uint32(2166136261)
	size := 0
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
		size++
		ahead := byte(0)
		if i+2 < len(s) {
			ahead = s[i+2]
		}
		if size == 8 || (s[i]^ahead)%5 == 0 {
			out = append(out, h)
			h, size = 2166136261, 0
		}
	}
	if size > 0 {
		out = append(out, h)
	}
	return out
}

// Names never attributes to a prompt a block that is not in the prompt, whatever was learned before.
func TestNames_NoFalseBlocks(t *testing.T) {
	t.Parallel()
	const blockSize = 4
	found := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		memory := indexmem.New(0)
		n := NewNames(memory)
		var texts []string
		for range 60 {
			s := ""
			if len(texts) > 0 && rng.IntN(4) > 0 {
				s = texts[rng.IntN(len(texts))]
				s = s[:rng.IntN(len(s)+1)]
			}
			s += text(rng.IntN(1<<20), 1+rng.IntN(3000))
			texts = append(texts, s)
			c := chain("m", s)
			names := kvindex.Chain(nil, tokens(s), blockSize, "", "")
			got, bytes, _ := n.Find(c, true)
			require.True(t, len(got) <= len(names) && slices.Equal(got, names[:len(got)]) && bytes <= len(s),
				"seed %d: %d blocks are attributed to a prompt that does not have them", seed, len(got))
			found += len(got)
			if rng.IntN(2) == 0 {
				n.Learn(c, names, blockSize, len(names)*blockSize)
			}
			if rng.IntN(10) == 0 {
				n.Evict(memory.Now(), int64(rng.IntN(3000)))
			}
		}
	}
	assert.GreaterOrEqual(t, found, 10_000, "%d blocks were found at all", found)
}

// In a chat's third turn, the blocks are known up to where the second turn has confirmed the first.
func TestNamesOfAChat(t *testing.T) {
	t.Parallel()
	n := NewNames(indexmem.New(0))
	turn := func(bytes int) (found int) {
		s := text(7, 9000)[:bytes]
		c := chain("m", s)
		names, _, _ := n.Find(c, true)
		n.Learn(c, kvindex.Chain(nil, tokens(s), 4, "", ""), 4, len(s))
		return len(names)
	}
	first := len(tokens(text(7, 9000)[:3000])) / 4
	if a, b, c := turn(3000), turn(5000), turn(7000); a != 0 || b != 0 || c < first-2 {
		t.Errorf("%d, %d and %d blocks are known, the first turn has %d", a, b, c, first)
	}
}

// TestNames_Evict: the least recently used prompts are evicted completely.
func TestNames_Evict(t *testing.T) {
	t.Parallel()
	memory := indexmem.New(0)
	n := NewNames(memory)
	for i := range 50 {
		s := text(i, 3000)
		n.Learn(chain("m", s), kvindex.Chain(nil, tokens(s), 16, "", ""), 16, len(s))
	}
	all := memory.Used(indexmem.Prompts)
	n.Evict(memory.Now(), all*9/10)
	if left := memory.Used(indexmem.Prompts); left > all/10 || left == 0 || n.oldest.Len() > 5 || len(n.at) > 60 {
		t.Errorf("%d of %d bytes, %d prompts at %d borders", left, all, n.oldest.Len(), len(n.at))
	}
	n.Clear()
	assert.True(t, memory.Used(indexmem.Prompts) == 0 && n.oldest.Len() == 0 && len(n.at) == 0,
		"%d bytes, %d prompts at %d borders are left", memory.Used(indexmem.Prompts), n.oldest.Len(), len(n.at))
	_, ok := n.Oldest()
	assert.False(t, ok, "there is an oldest one")
}
