package openai

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// maxDepth bounds nesting; vLLM's own parser gives up near 1000 levels.
const maxDepth = 512

// errSyntax is wrapped by every error of the scanner.
var errSyntax = errors.New("invalid JSON")

func syntaxError(pos int, what string) error {
	return fmt.Errorf("%w: %s at byte %d", errSyntax, what, pos)
}

// scanner validates JSON (RFC 8259) without building anything. Its methods
// take the position where a token begins and give the position after it.
type scanner struct {
	b []byte
}

func (s *scanner) space(i int) int {
	for i < len(s.b) {
		switch s.b[i] {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
	return i
}

// value checks the value that begins at i.
func (s *scanner) value(i, depth int) (int, error) {
	if i >= len(s.b) {
		return i, syntaxError(i, "unexpected end")
	}
	switch c := s.b[i]; {
	case c == '"':
		return s.str(i)
	case c == '{':
		return s.object(i, depth)
	case c == '[':
		return s.array(i, depth)
	case c == '-' || (c >= '0' && c <= '9'):
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	default:
		return i, syntaxError(i, "unexpected character")
	}
}

func (s *scanner) literal(i int, word string) (int, error) {
	if len(s.b)-i < len(word) || string(s.b[i:i+len(word)]) != word {
		return i, syntaxError(i, "unexpected character")
	}
	return i + len(word), nil
}

func (s *scanner) number(i int) (int, error) {
	b, start := s.b, i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = digits(b, i)
	default:
		return i, syntaxError(start, "bad number")
	}
	if i < len(b) && b[i] == '.' {
		j := digits(b, i+1)
		if j == i+1 {
			return i, syntaxError(start, "bad number")
		}
		i = j
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		j := digits(b, i)
		if j == i {
			return i, syntaxError(start, "bad number")
		}
		i = j
	}
	return i, nil
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
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

// str checks the string whose opening quote is at i. Many bytes are looked at
// a time: prompts are long and mostly plain.
func (s *scanner) str(i int) (int, error) {
	b, start := s.b, i
	i++
	for {
		for i+32 <= len(b) {
			w := b[i : i+32 : i+32]
			m := special(binary.LittleEndian.Uint64(w)) | special(binary.LittleEndian.Uint64(w[8:])) |
				special(binary.LittleEndian.Uint64(w[16:])) | special(binary.LittleEndian.Uint64(w[24:]))
			if m&highBits != 0 {
				break
			}
			i += 32
		}
		for i+8 <= len(b) {
			if m := special(binary.LittleEndian.Uint64(b[i:])) & highBits; m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			return i, syntaxError(start, "unterminated string")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\':
			j, err := s.escape(i)
			if err != nil {
				return i, err
			}
			i = j
		case c < 0x20:
			return i, syntaxError(i, "control character in a string")
		default:
			i++
		}
	}
}

func (s *scanner) escape(i int) (int, error) {
	b := s.b
	if i+1 >= len(b) {
		return i, syntaxError(i, "unterminated string")
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		if i+6 > len(b) {
			return i, syntaxError(i, "bad escape")
		}
		for _, c := range b[i+2 : i+6] {
			if !isHex(c) {
				return i, syntaxError(i, "bad escape")
			}
		}
		return i + 6, nil
	default:
		return i, syntaxError(i, "bad escape")
	}
}

func isHex(c byte) bool {
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')
}

func (s *scanner) array(i, depth int) (int, error) {
	if depth >= maxDepth {
		return i, syntaxError(i, "nested too deeply")
	}
	b := s.b
	i = s.space(i + 1)
	if i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		// Fast way through what most arrays of a request hold: plain token ids.
		if i < len(b) && b[i] >= '1' && b[i] <= '9' {
			j := digits(b, i+1)
			if j < len(b) && b[j] == ',' {
				i = j + 1
				if i < len(b) && b[i] == ' ' {
					i++
				}
				continue
			}
		}
		i = s.space(i)
		var err error
		if i, err = s.value(i, depth+1); err != nil {
			return i, err
		}
		i = s.space(i)
		if i >= len(b) {
			return i, syntaxError(i, "unexpected end")
		}
		switch b[i] {
		case ',':
			i++
		case ']':
			return i + 1, nil
		default:
			return i, syntaxError(i, "expected ',' or ']'")
		}
	}
}

func (s *scanner) object(i, depth int) (int, error) {
	return s.members(i, depth, nil)
}

// member is one key-value pair: b[key:keyEnd] with its quotes, b[val:end].
type member struct {
	key, keyEnd, val, end int
}

// members checks the object that begins at i and calls visit, where given,
// after each of its pairs.
func (s *scanner) members(i, depth int, visit func(member) error) (int, error) {
	if depth >= maxDepth {
		return i, syntaxError(i, "nested too deeply")
	}
	b := s.b
	i = s.space(i + 1)
	if i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) {
			return i, syntaxError(i, "unexpected end")
		}
		if b[i] != '"' {
			return i, syntaxError(i, "expected a field name in double quotes")
		}
		m := member{key: i}
		var err error
		if m.keyEnd, err = s.str(i); err != nil {
			return i, err
		}
		i = s.space(m.keyEnd)
		if i >= len(b) || b[i] != ':' {
			return i, syntaxError(i, "expected ':'")
		}
		m.val = s.space(i + 1)
		if m.end, err = s.value(m.val, depth+1); err != nil {
			return m.end, err
		}
		if visit != nil {
			if err = visit(m); err != nil {
				return m.end, err
			}
		}
		i = s.space(m.end)
		if i >= len(b) {
			return i, syntaxError(i, "unexpected end")
		}
		switch b[i] {
		case ',':
			i = s.space(i + 1)
		case '}':
			return i + 1, nil
		default:
			return i, syntaxError(i, "expected ',' or '}'")
		}
	}
}

// unquote gives the text of a string token that the scanner accepted. The
// result shares the token's bytes unless it holds an escape.
func unquote(tok []byte) []byte {
	tok = tok[1 : len(tok)-1]
	for i, c := range tok {
		if c == '\\' {
			return unescape(tok, i)
		}
	}
	return tok
}

func unescape(tok []byte, i int) []byte {
	out := append(make([]byte, 0, len(tok)), tok[:i]...)
	for i < len(tok) {
		c := tok[i]
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		i++
		switch tok[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(tok[i+1:])
			i += 4
			if r >= 0xd800 && r < 0xdc00 && i+6 < len(tok) && tok[i+1] == '\\' && tok[i+2] == 'u' {
				if lo := hex4(tok[i+3:]); lo >= 0xdc00 && lo < 0xe000 {
					r = 0x10000 + (r-0xd800)<<10 + (lo - 0xdc00)
					i += 6
				}
			}
			out = appendRune(out, r)
		default: // '"', '\\', '/'
			out = append(out, tok[i])
		}
		i++
	}
	return out
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r <<= 4
		switch {
		case c <= '9':
			r |= rune(c - '0')
		case c >= 'a':
			r |= rune(c-'a') + 10
		default:
			r |= rune(c-'A') + 10
		}
	}
	return r
}
