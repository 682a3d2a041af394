package model

import (
	"math/bits"
	"strconv"
	"strings"
)

// VocabSize is the number of token ids of the simulated model: ids run from 0
// to VocabSize-1, the first FirstTextToken of them are special and have no
// text.
const (
	VocabSize      = 1 << 17
	FirstTextToken = 16
)

// The special tokens of the simulated chat template. EOS ends an answer and,
// as in real templates, a message.
const (
	EOS          = 2
	StartMessage = 3 // begins a message; the role's token follows
	EndMessage   = 4 // ends a message
	StartTools   = 5 // begins the tools block
)

const (
	consonants = "bdfghjklmnprstvz"
	vowels     = "aeio"
	wordLen    = 7 // a space and three syllables
)

// MaxPiece is the number of bytes of a token besides its leading space.
const MaxPiece = 12

// wordSuffix appends a tail to some words, so that streams carry two- and four-byte
// runes and characters that JSON escapes: a relay that cuts runes, trims, or
// re-encodes is found out by comparing texts.
func wordSuffix(id int) string {
	switch id & 127 {
	case 5, 37, 69, 101:
		return "é"
	case 11:
		return "🙂"
	case 43:
		return `"`
	case 75:
		return "\n"
	case 107:
		return `\`
	}
	return ""
}

// AppendWord appends the text of a token id. Every text token begins with a
// space, which is what makes Tokenize(a+Detokenize(ids)) equal to
// Tokenize(a) followed by ids. Special ids have no text.
func AppendWord(dst []byte, id int) []byte {
	if id < FirstTextToken || id >= VocabSize {
		return dst
	}
	dst = appendSyllables(dst, id)
	return append(dst, wordSuffix(id)...)
}

// AppendWordJSON is AppendWord inside a JSON string.
func AppendWordJSON(dst []byte, id int) []byte {
	if id < FirstTextToken || id >= VocabSize {
		return dst
	}
	dst = appendSyllables(dst, id)
	switch s := wordSuffix(id); s {
	case `"`:
		return append(dst, '\\', '"')
	case "\n":
		return append(dst, '\\', 'n')
	case `\`:
		return append(dst, '\\', '\\')
	default:
		return append(dst, s...)
	}
}

func appendSyllables(dst []byte, id int) []byte {
	a, b, c := id>>12&63, id>>6&63, id&63
	return append(dst, ' ',
		consonants[a>>2], vowels[a&3],
		consonants[b>>2], vowels[b&3],
		consonants[c>>2], vowels[c&3])
}

// WordID is the inverse of AppendWord; ok is false for any other text.
func WordID(piece string) (id int, ok bool) {
	if len(piece) < wordLen || piece[0] != ' ' {
		return 0, false
	}
	for i := 1; i < wordLen; i += 2 {
		c, v := strings.IndexByte(consonants, piece[i]), strings.IndexByte(vowels, piece[i+1])
		if c < 0 || v < 0 {
			return 0, false
		}
		id = id<<6 | c<<2 | v
	}
	if id < FirstTextToken || id >= VocabSize {
		return 0, false
	}
	return id, piece[wordLen:] == wordSuffix(id)
}

// Tokenize cuts text into token ids: a token is at most one leading space and
// up to twelve other bytes. Texts that AppendWord makes get their own id back,
// every other piece a hash of its bytes.
func Tokenize(text string) []int {
	return AppendTokens(make([]int, 0, len(text)/5+4), text)
}

// AppendTokens appends the tokens of Tokenize.
func AppendTokens(dst []int, text string) []int {
	for i := 0; i < len(text); {
		start := i
		if text[i] == ' ' {
			i++
		}
		limit := min(len(text), i+MaxPiece)
		for i < limit && text[i] != ' ' {
			i++
		}
		dst = append(dst, PieceID(text[start:i]))
	}
	return dst
}

// PieceID returns the token of a piece of at most MaxPiece+1 bytes.
func PieceID(piece string) int {
	if id, ok := WordID(piece); ok {
		return id
	}
	hi, _ := bits.Mul64(HashPiece(piece), VocabSize-FirstTextToken)
	return FirstTextToken + int(hi)
}

// HashPiece hashes at most 16 bytes, eight at a time: prompts may have a megabyte.
func HashPiece(piece string) uint64 {
	n := len(piece)
	var a, b uint64
	if n >= 8 {
		a, b = load64(piece), load64(piece[n-8:])
	} else {
		for i := range n {
			a = a<<8 | uint64(piece[i])
		}
	}
	return Mix(a*0x9e3779b97f4a7c15 ^ bits.RotateLeft64(b, 29)*0xd1342543de82ef95 ^ uint64(n)<<56)
}

func load64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// Detokenize is the text of a list of ids; special ids have none.
func Detokenize(ids []int) string {
	b := make([]byte, 0, len(ids)*wordLen)
	for _, id := range ids {
		b = AppendWord(b, id)
	}
	return string(b)
}

// Mix spreads the entropy of x over all bits (the finalizer of the
// splitmix generator).
func Mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Hex16 is a number as 16 hexadecimal digits.
func Hex16(x uint64) string {
	s := strconv.FormatUint(x, 16)
	return "0000000000000000"[len(s):] + s
}
