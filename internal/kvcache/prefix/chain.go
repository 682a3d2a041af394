// Package prefix records which prompts instances have computed, by their text only.
//
// A prompt is divided at borders, and the hash of all text before each border is recorded. The borders depend
// only on the position, so prompts that begin with the same text begin with the same hashes.
package prefix

import (
	"math/bits"

	"github.com/zeebo/xxh3"
)

// Key represents all text up to a border.
type Key uint64

// Chain has the borders of one prompt. Start resets it for another one; the zero value is ready to
// use. It is not safe for concurrent use.
type Chain struct {
	keys  []Key
	total int
	so    Key    // key of the text up to the last border
	part  []byte // text after it, if added in several pieces
	next  int    // position of the next border
}

const (
	// shortest is the distance of borders at the beginning of a prompt. A shorter prompt has no borders.
	shortest = 256
	// fineness bounds the distance of two borders: at most 1/fineness of the text before them. So the number
	// of borders grows with the logarithm of the length, and the known part of a prompt is exact to
	// 1/fineness.
	fineness = 32
	// even is the number of borders at the shortest distance. After them, 1/fineness of the text is twice
	// that distance.
	even = 2 * fineness
)

// step returns the distance from a border to the next, a power of two.
func step(at int) int {
	if at < shortest*even {
		return shortest
	}
	return 1 << (bits.Len(uint(at)) - 1) / fineness
}

// end returns the number of bytes before a border; borders is its number, from 1.
func end(borders int) int {
	if borders <= even {
		return shortest * borders
	}
	doubled, within := (borders-even)/fineness, (borders-even)%fineness
	base := shortest * even << doubled
	return base + within*(base/fineness)
}

// Start begins the chain of another prompt. Prompts of different models have no key in common.
func (c *Chain) Start(model string) {
	c.keys, c.part, c.total, c.next = c.keys[:0], c.part[:0], 0, shortest
	c.so = Key(xxh3.HashString(model))
}

// Add appends text. The result does not depend on how the text is divided into calls.
func (c *Chain) Add(text []byte) {
	for len(text) > 0 {
		missing := c.next - c.total
		if len(text) < missing {
			c.part = append(c.part, text...)
			c.total += len(text)
			return
		}
		part := text[:missing]
		if len(c.part) > 0 {
			c.part = append(c.part, part...)
			part = c.part
		}
		c.so = following(c.so, part)
		c.part = c.part[:0]
		c.total += missing
		text = text[missing:]
		c.keys = append(c.keys, c.so)
		c.next += step(c.total)
	}
}

// following returns the key of a text with the key before, followed by text. Hashing each part is twice as
// fast as a running hash of the whole text that is read at each border.
func following(before Key, text []byte) Key {
	const odd = 0x9e3779b97f4a7c15 // from the golden ratio: all bits of both take part
	high, low := bits.Mul64(uint64(before)^odd, xxh3.Hash(text)|1)
	return Key(high ^ low)
}

// Len returns the number of borders.
func (c *Chain) Len() int { return len(c.keys) }

// Total returns the number of bytes, including those after the last border.
func (c *Chain) Total() int { return c.total }

// End returns the number of bytes before a border; borders is its number, from 1.
func (c *Chain) End(borders int) int { return end(borders) }

// Key returns the key of the text up to border i, counted from 0, or of the whole text if i is not
// less than Len.
func (c *Chain) Key(i int) Key {
	switch {
	case i < len(c.keys):
		return c.keys[i]
	case len(c.part) == 0:
		return c.so
	default:
		return following(c.so, c.part)
	}
}

// Clone returns a copy that later calls of Start and Add do not change.
func (c *Chain) Clone() *Chain {
	is := *c
	is.keys, is.part = append([]Key(nil), c.keys...), append([]byte(nil), c.part...)
	return &is
}
