// Package prefix records which prompts instances have computed, by their text alone.
//
// A prompt is divided at borders, and the hash of all text before each border is recorded. The
// borders depend on the position only, so prompts that begin with the same text begin with the
// same hashes.
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
	so    Key    // represents the text up to the last border
	part  []byte // text after it that was added in several pieces
	next  int    // border
}

const (
	// shortest is the distance of borders at the beginning. A shorter prompt has
	// no borders.
	shortest = 256
	// fineness bounds the distance from a border to the next: a thirty-second of the text before
	// it. So the number of borders grows with the logarithm of the length, and the known part of a
	// prompt is exact to a thirty-second.
	fineness = 32
	// even is the number of borders with the shortest distance: up to where a thirty-second is
	// twice as long.
	even = 2 * fineness
)

// step returns the distance from a border to the next, a power of two.
func step(at int) int {
	if at < shortest*even {
		return shortest
	}
	return 1 << (bits.Len(uint(at)) - 1) / fineness
}

// end returns the number of bytes before the last of the given number of borders.
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

// following returns the key of the text of before and the text after it. Hashing part by part is
// twice as fast as a running hash of the whole text that is read at each border.
func following(before Key, text []byte) Key {
	const odd = 0x9e3779b97f4a7c15 // of the golden ratio: all bits of both take part
	high, low := bits.Mul64(uint64(before)^odd, xxh3.Hash(text)|1)
	return Key(high ^ low)
}

// Len returns the number of borders.
func (c *Chain) Len() int { return len(c.keys) }

// Total returns the number of bytes, including those after the last border.
func (c *Chain) Total() int { return c.total }

// End returns the number of bytes before the last of the given number of borders.
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
