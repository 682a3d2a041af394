// Package prefix remembers which prompts instances have computed, by their text alone.
//
// A prompt is cut at borders, and the hash of all that stands before a border is what is
// remembered. Where the borders are depends on the position only, so that two prompts
// have as many hashes in common as they have text in common.
package prefix

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// Key stands for all text up to a border.
type Key uint64

// Chain are the borders of one prompt. It may be used again.
type Chain struct {
	keys   []Key
	ends   []int // bytes up to each border
	total  int
	digest xxhash.Digest
	next   int // border
}

const (
	// shortest is the distance of borders at the beginning. A prompt shorter than that
	// is nobody's in particular.
	shortest = 256
	// fineness is the part of what stands before a border that the distance to the next
	// may have: long prompts have few more borders than short ones, and what is known
	// of a prompt is right to a thirty-second part.
	fineness = 32
)

// step is the distance from a border to the next. It is a power of two.
func step(at int) int {
	if at < shortest*fineness*2 {
		return shortest
	}
	return 1 << (bits.Len(uint(at)) - 1) / fineness
}

// Start begins the chain of another prompt. Prompts of different models have nothing in
// common.
func (c *Chain) Start(model string) {
	c.keys, c.ends, c.total, c.next = c.keys[:0], c.ends[:0], 0, shortest
	c.digest.Reset()
	_, _ = c.digest.WriteString(model) // it never fails
	_, _ = c.digest.Write([]byte{0})
}

// Add takes in more text.
func (c *Chain) Add(text []byte) {
	for len(text) > 0 {
		part := text[:min(c.next-c.total, len(text))]
		_, _ = c.digest.Write(part)
		c.total += len(part)
		text = text[len(part):]
		if c.total == c.next {
			c.keys = append(c.keys, Key(c.digest.Sum64()))
			c.ends = append(c.ends, c.total)
			c.next += step(c.total)
		}
	}
}

// Len is how many borders there are.
func (c *Chain) Len() int { return len(c.keys) }

// Total is how many bytes there are, those behind the last border too.
func (c *Chain) Total() int { return c.total }

// End is how many bytes stand before so many borders.
func (c *Chain) End(borders int) int {
	if borders == 0 {
		return 0
	}
	return c.ends[borders-1]
}

// Key stands for the text up to the i-th border, from 0; behind the last one for the
// whole text.
func (c *Chain) Key(i int) Key {
	if i < len(c.keys) {
		return c.keys[i]
	}
	return Key(c.digest.Sum64())
}

// Clone gives the same chain, for keeping.
func (c *Chain) Clone() *Chain {
	return &Chain{keys: append([]Key(nil), c.keys...), ends: append([]int(nil), c.ends...), total: c.total, digest: c.digest, next: c.next}
}
