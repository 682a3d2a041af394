// Package prefix remembers which prompts instances have computed, by their text alone.
//
// A prompt is cut at borders, and the hash of all that precedes a border is what is
// remembered. Where the borders are depends on the position only, so that two prompts
// have as many hashes in common as they have text in common.
package prefix

import (
	"math/bits"

	"github.com/zeebo/xxh3"
)

// Key represents all text up to a border.
type Key uint64

// Chain are the borders of one prompt. It may be used again.
type Chain struct {
	keys  []Key
	total int
	so    Key    // represents the text up to the last border
	part  []byte // text behind it that came in more than one piece
	next  int    // border
}

const (
	// shortest is the distance of borders at the beginning. A prompt shorter than that
	// is nobody's in particular.
	shortest = 256
	// fineness is the part of what precedes a border that the distance to the next
	// may have: long prompts have few more borders than short ones, and what is known
	// of a prompt is right to a thirty-second part.
	fineness = 32
	// even is how many borders have the shortest distance: up to where a step of that
	// part is twice as long.
	even = 2 * fineness
)

// step is the distance from a border to the next. It is a power of two.
func step(at int) int {
	if at < shortest*even {
		return shortest
	}
	return 1 << (bits.Len(uint(at)) - 1) / fineness
}

// end is how many bytes precede so many borders.
func end(borders int) int {
	if borders <= even {
		return shortest * borders
	}
	doubled, within := (borders-even)/fineness, (borders-even)%fineness
	base := shortest * even << doubled
	return base + within*(base/fineness)
}

// Start begins the chain of another prompt. Prompts of different models have nothing in
// common.
func (c *Chain) Start(model string) {
	c.keys, c.part, c.total, c.next = c.keys[:0], c.part[:0], 0, shortest
	c.so = Key(xxh3.HashString(model))
}

// Add takes in more text. The text alone counts, not the pieces in which it is added.
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
		c.so = behind(c.so, part)
		c.part = c.part[:0]
		c.total += missing
		text = text[missing:]
		c.keys = append(c.keys, c.so)
		c.next += step(c.total)
	}
}

// behind returns the key of a text and of what follows it. One part after the other
// is hashed: that is twice as fast as one hash of all, asked at each border.
func behind(before Key, text []byte) Key {
	const odd = 0x9e3779b97f4a7c15 // of the golden ratio: all bits of both take part
	high, low := bits.Mul64(uint64(before)^odd, xxh3.Hash(text)|1)
	return Key(high ^ low)
}

// Len is how many borders there are.
func (c *Chain) Len() int { return len(c.keys) }

// Total is how many bytes there are, those behind the last border too.
func (c *Chain) Total() int { return c.total }

// End is how many bytes precede so many borders.
func (c *Chain) End(borders int) int { return end(borders) }

// Key represents the text up to the i-th border, from 0; behind the last one for the
// whole text.
func (c *Chain) Key(i int) Key {
	switch {
	case i < len(c.keys):
		return c.keys[i]
	case len(c.part) == 0:
		return c.so
	default:
		return behind(c.so, c.part)
	}
}

// Clone returns the same chain, for keeping.
func (c *Chain) Clone() *Chain {
	is := *c
	is.keys, is.part = append([]Key(nil), c.keys...), append([]byte(nil), c.part...)
	return &is
}
