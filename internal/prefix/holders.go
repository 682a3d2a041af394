package prefix

import "math/bits"

// holders are the targets that know a border, as a set, and what is known of the border.
type holders struct {
	first uint64   // targets 0 to 63
	rest  []uint64 // those behind
	next  Key      // border that followed first; 0: none has
	// forked tells that another one has followed, too: prompts of several chats have this
	// text in common.
	forked bool
}

func (h *holders) add(t int) {
	if t < 64 {
		h.first |= 1 << t
		return
	}
	for len(h.rest) < t/64 {
		h.rest = append(h.rest, 0)
	}
	h.rest[t/64-1] |= 1 << (t % 64)
}

func (h *holders) remove(t int) {
	switch {
	case t < 64:
		h.first &^= 1 << t
	case t/64 <= len(h.rest):
		h.rest[t/64-1] &^= 1 << (t % 64)
	}
}

func (h *holders) empty() bool {
	if h.first != 0 {
		return false
	}
	for _, w := range h.rest {
		if w != 0 {
			return false
		}
	}
	return true
}

// meet leaves those that are in both, and calls f for every other one.
func (h *holders) meet(other holders, dropped func(t int)) {
	each(h.first&^other.first, 0, dropped)
	h.first &= other.first
	for i, w := range h.rest {
		var both uint64
		if i < len(other.rest) {
			both = w & other.rest[i]
		}
		each(w&^both, (i+1)*64, dropped)
		h.rest[i] = both
	}
}

// each calls f for every one.
func (h *holders) each(f func(t int)) {
	each(h.first, 0, f)
	for i, w := range h.rest {
		each(w, (i+1)*64, f)
	}
}

// each calls f for every bit of a word; from is the number of the lowest.
func each(word uint64, from int, f func(t int)) {
	for ; word != 0; word &= word - 1 {
		f(from + bits.TrailingZeros64(word))
	}
}
