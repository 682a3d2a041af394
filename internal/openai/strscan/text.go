package strscan

import (
	"encoding/binary"
	"math/bits"
)

// first is how many bytes are looked at before blocks is called, which costs as
// much as looking at these bytes does.
const first = 64

// Text gives the length of the longest start of b that is text inside of a
// JSON string (RFC 8259): characters that stand for themselves and whole, valid
// escapes. What follows is the closing quote, a control character, a backslash
// that begins no valid escape, or the end of b. ascii tells that none of these
// n bytes is above 0x7f; whether the others are UTF-8 is not looked at.
func Text(b []byte) (n int, ascii bool) {
	// Most keys end within two words.
	for n+8 <= len(b) && n < 16 {
		w := binary.LittleEndian.Uint64(b[n:])
		m := special(w) & highBits
		if m == 0 {
			if w&highBits != 0 {
				break
			}
			n += 8
			continue
		}
		if w&(m^(m-1))&highBits != 0 {
			break
		}
		if n += bits.TrailingZeros64(m) >> 3; b[n] == '"' {
			return n, true
		}
		break
	}
	return long(b, n)
}

// Short is Text for a string of up to seven ASCII bytes with a quote behind them, as
// most keys are, and -1 for any other. It is small enough to be part of its caller.
func Short(b []byte) int {
	if len(b) < 8 {
		return -1
	}
	w := binary.LittleEndian.Uint64(b)
	m := special(w) & highBits
	n := bits.TrailingZeros64(m) >> 3 // 8 for none
	if m == 0 || b[n] != '"' || w&(m^(m-1))&highBits != 0 {
		return -1
	}
	return n
}

// long is Text for a string of which n bytes are seen to be ASCII text.
func long(b []byte, n int) (end int, ascii bool) {
	n, high := words(b, n, min(len(b), first))
	if n >= first {
		done, h := blocks(b[n:])
		high |= h
		n, h = words(b, n+done, len(b))
		high |= h
	}
	return n, high&highBits == 0
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special marks the bytes of w that do not simply stand for themselves in a
// string: quotes, backslashes and control characters. The high bit of the
// lowest such byte is right; those above it may be false alarms.
//
// A byte of x is zero where (x-low)&^x has its high bit set, and below n where
// (x-n...)&^x has, for n up to 0x80; a borrow can raise a false alarm only above
// a true one. The quote (0x22) is tested together with what is below 0x20: with
// one bit turned it becomes 0x20, and they stay below it.
func special(w uint64) uint64 {
	q := w ^ (lowBits * ('"' ^ 0x20))
	e := w ^ (lowBits * '\\')
	return ((q - lowBits*0x21) &^ q) | ((e - lowBits) &^ e)
}

// words goes on behind the first n bytes of b, word by word, to where text ends
// or limit is reached or passed, but no character is cut. high has the high bit
// of some byte set if one of the bytes passed has.
func words(b []byte, n, limit int) (end int, high uint64) {
	for {
		for n+32 <= limit {
			w := b[n : n+32 : n+32]
			w0, w1 := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
			w2, w3 := binary.LittleEndian.Uint64(w[16:]), binary.LittleEndian.Uint64(w[24:])
			if (special(w0)|special(w1)|special(w2)|special(w3))&highBits != 0 {
				break
			}
			high |= w0 | w1 | w2 | w3
			n += 32
		}
		for n+8 <= limit {
			w := binary.LittleEndian.Uint64(b[n:])
			if m := special(w) & highBits; m != 0 {
				high |= w & (m ^ (m - 1))
				n += bits.TrailingZeros64(m) >> 3
				break
			}
			high |= w
			n += 8
		}
		if n >= limit {
			return n, high
		}
		switch c := b[n]; {
		case c == '\\':
			k := escape(b, n)
			if k == 0 {
				return n, high
			}
			n += k
		case c == '"' || c < 0x20:
			return n, high
		default:
			high |= uint64(c)
			n++
		}
	}
}

// escape gives the length of the escape at b[i], 0 if it is none.
func escape(b []byte, i int) int {
	if i+1 >= len(b) {
		return 0
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if i+6 <= len(b) && isHex(b[i+2]) && isHex(b[i+3]) && isHex(b[i+4]) && isHex(b[i+5]) {
			return 6
		}
	}
	return 0
}

func isHex(c byte) bool {
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')
}
