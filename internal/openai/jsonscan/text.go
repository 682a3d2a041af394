package jsonscan

import (
	"encoding/binary"
	"math/bits"
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// text returns the length of the longest prefix of b that is text inside a JSON string (RFC
// 8259): literal characters and complete, valid escapes. After it comes the closing quote,
// a control character, a backslash that begins no valid escape, or the end of b. ascii
// reports whether all n bytes are below 0x80; text does not check the others for UTF-8.
//
// A prompt is one string of up to some MiB, so text reads a machine word at a time.
func text(b []byte) (n int, ascii bool) {
	high := uint64(0) // has a high bit set if a byte that was passed has
	for {
		for n+32 <= len(b) {
			w := b[n : n+32 : n+32]
			w0, w1 := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
			w2, w3 := binary.LittleEndian.Uint64(w[16:]), binary.LittleEndian.Uint64(w[24:])
			if (special(w0)|special(w1)|special(w2)|special(w3))&highBits != 0 {
				break
			}
			high |= w0 | w1 | w2 | w3
			n += 32
		}
		for n+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[n:])
			if m := special(w) & highBits; m != 0 {
				high |= w & (m ^ (m - 1))
				n += bits.TrailingZeros64(m) >> 3
				break
			}
			high |= w
			n += 8
		}
		if n >= len(b) {
			return n, high&highBits == 0
		}
		switch c := b[n]; {
		case c == '\\':
			k := escape(b, n)
			if k == 0 {
				return n, high&highBits == 0
			}
			n += k
		case c == '"' || c < 0x20:
			return n, high&highBits == 0
		default:
			high |= uint64(c)
			n++
		}
	}
}

// shortText is text for a string of up to seven ASCII bytes followed by a quote, as most
// keys are; it returns -1 for any other string. It is small enough to be inlined.
func shortText(b []byte) int {
	if len(b) < 8 {
		return -1
	}
	w := binary.LittleEndian.Uint64(b)
	m := special(w) & highBits
	n := bits.TrailingZeros64(m) >> 3 // 8 if there is none
	if m == 0 || b[n] != '"' || w&(m^(m-1))&highBits != 0 {
		return -1
	}
	return n
}

// special marks the bytes of w that are not literal in a string: quotes,
// backslashes and control characters. The high bit of the lowest such byte is exact;
// bits above it may be false positives.
//
// A byte of x is zero where (x-low)&^x has its high bit set, and below n where
// (x-n...)&^x has, for n up to 0x80; a borrow can cause a false positive only above
// a true one. The quote (0x22) is tested together with the bytes below 0x20: with
// one bit inverted it becomes 0x20, and they stay below it.
func special(w uint64) uint64 {
	q := w ^ (lowBits * ('"' ^ 0x20))
	e := w ^ (lowBits * '\\')
	return ((q - lowBits*0x21) &^ q) | ((e - lowBits) &^ e)
}

// escape returns the length of the escape at b[i], or 0 if it is invalid.
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
