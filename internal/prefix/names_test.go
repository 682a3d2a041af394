package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/internal/kvindex"
)

// tokens cuts a text into tokens of one to eight bytes. The cut depends on the bytes
// around it, so that the last tokens of a text are others when it goes on.
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

// No block that is said to belong to a prompt is one that it does not have, whatever
// prompts have been told before.
func TestNamesAreNeverWrong(t *testing.T) {
	t.Parallel()
	const blockSize = 4
	found := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n := NewNames(2000)
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
			got, bytes := n.Find(c)
			if len(got) > len(names) || !slices.Equal(got, names[:len(got)]) || bytes > len(s) {
				t.Fatalf("seed %d: %d blocks are said to belong to a prompt that has them not", seed, len(got))
			}
			found += len(got)
			if rng.IntN(2) == 0 {
				n.Learn(c, names, blockSize, len(names)*blockSize)
			}
			if n.size > n.most {
				t.Fatalf("%d names, at most %d", n.size, n.most)
			}
		}
	}
	if found < 10_000 {
		t.Errorf("%d blocks were found at all", found)
	}
}

// A chat's third turn is known up to where the second has confirmed the first.
func TestNamesOfAChat(t *testing.T) {
	t.Parallel()
	n := NewNames(1 << 20)
	turn := func(bytes int) (found int) {
		s := text(7, 9000)[:bytes]
		c := chain("m", s)
		names, _ := n.Find(c)
		n.Learn(c, kvindex.Chain(nil, tokens(s), 4, "", ""), 4, len(s))
		return len(names)
	}
	first := len(tokens(text(7, 9000)[:3000])) / 4
	if a, b, c := turn(3000), turn(5000), turn(7000); a != 0 || b != 0 || c < first-2 {
		t.Errorf("%d, %d and %d blocks are known, the first turn has %d", a, b, c, first)
	}
}

func TestNamesForgets(t *testing.T) {
	t.Parallel()
	n := NewNames(100)
	for i := range 50 {
		s := text(i, 3000)
		n.Learn(chain("m", s), kvindex.Chain(nil, tokens(s), 16, "", ""), 16, len(s))
	}
	if n.size > 100 || n.oldest.Len() > 5 || len(n.at) > 60 {
		t.Errorf("%d names of %d prompts at %d borders", n.size, n.oldest.Len(), len(n.at))
	}
}
