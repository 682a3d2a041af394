package kvindex

import (
	"math/bits"
	"slices"
)

// slot is the number of a target while the index knows it.
type slot uint16

// few is the maximum number of holders that are stored without a bit set.
const few = 3

// holders has the targets of a block. Up to few of them take 16 bytes.
type holders struct {
	many *[]uint64 // a bit for each slot; nil for at most few targets
	few  [few]slot
	n    uint8 // number of used elements of few
}

// size returns the memory of many in bytes.
func (h *holders) size() int {
	if h.many == nil {
		return 0
	}
	return 24 + 8*cap(*h.many)
}

func (h *holders) has(s slot) bool {
	if h.many != nil {
		word := int(s / 64)
		return word < len(*h.many) && (*h.many)[word]>>(s%64)&1 != 0
	}
	return slices.Contains(h.few[:h.n], s)
}

func (h *holders) add(s slot) {
	switch {
	case h.has(s):
	case h.many == nil && h.n < few:
		h.few[h.n] = s
		h.n++
	default:
		if h.many == nil {
			h.many = new([]uint64)
			for _, have := range h.few[:h.n] {
				h.set(have)
			}
			h.n = 0
		}
		h.set(s)
	}
}

func (h *holders) set(s slot) {
	for int(s/64) >= len(*h.many) {
		*h.many = append(*h.many, 0)
	}
	(*h.many)[s/64] |= 1 << (s % 64)
}

// remove removes a holder, and reports whether none is left.
func (h *holders) remove(s slot) bool {
	if h.many != nil {
		if word := int(s / 64); word < len(*h.many) {
			(*h.many)[word] &^= 1 << (s % 64)
		}
		return !slices.ContainsFunc(*h.many, func(word uint64) bool { return word != 0 })
	}
	if i := slices.Index(h.few[:h.n], s); i >= 0 {
		h.n--
		h.few[i] = h.few[h.n]
	}
	return h.n == 0
}

// among returns the alive targets that hold the block.
func (h *holders) among(slots *[64]slot, alive uint64) uint64 {
	var left uint64
	for rest := alive; rest != 0; rest &= rest - 1 {
		if i := bits.TrailingZeros64(rest); h.has(slots[i]) {
			left |= 1 << i
		}
	}
	return left
}
