package model

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

// VocabSize is the number of token ids of the simulated model: ids run from 0
// to VocabSize-1. The first FirstTextToken of them are special; most of those have
// no text. Words follow, and the last 256 ids, from FirstByte on, are single bytes.
const (
	VocabSize      = 1 << 17
	FirstTextToken = 16
	FirstByte      = VocabSize - 256
)

// The special tokens of the simulated chat template. EOS ends an answer and,
// as in real templates, a message.
const (
	EOS          = 2
	StartMessage = 3 // begins a message; the role's token follows
	EndMessage   = 4 // ends a message
	StartTools   = 5 // begins the tools block

	// The tags of reasoning and tool calls. As in Qwen3's vocabulary they have text and
	// are not skipped as special tokens.
	Think       = 6
	EndThink    = 7
	ToolCall    = 8
	EndToolCall = 9
)

// tag is the text of a special token, "" for none.
func tag(id int) string {
	switch id {
	case Think:
		return "<think>"
	case EndThink:
		return "</think>"
	case ToolCall:
		return "<tool_call>"
	case EndToolCall:
		return "</tool_call>"
	}
	return ""
}

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

// AppendWord appends the text of a token id. Every word begins with a
// space, which is what makes Tokenize(a+Detokenize(ids)) equal to
// Tokenize(a) followed by ids. A byte may be part of a character.
func AppendWord(dst []byte, id int) []byte {
	switch {
	case id < FirstTextToken:
		return append(dst, tag(id)...)
	case id >= VocabSize:
		return dst
	case id >= FirstByte:
		return append(dst, byte(id-FirstByte))
	}
	dst = appendSyllables(dst, id)
	return append(dst, wordSuffix(id)...)
}

// AppendWordJSON is AppendWord inside a JSON string. A byte that is no character becomes U+FFFD.
func AppendWordJSON(dst []byte, id int) []byte {
	if id < FirstTextToken || id >= FirstByte {
		return jsontext.AppendText(dst, AppendWord(nil, id))
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
	if id < FirstTextToken || id >= FirstByte {
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
	return word(HashPiece(piece))
}

// word maps a hash to the id of a word.
func word(hash uint64) int {
	hi, _ := bits.Mul64(hash, VocabSize-FirstTextToken)
	id := FirstTextToken + int(hi)
	if id >= FirstByte {
		id -= VocabSize - FirstByte
	}
	return id
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

func load64(s string) uint64 { return binary.LittleEndian.Uint64([]byte(s[:8])) }

// AppendBytes appends text as one token per byte.
func AppendBytes(dst []int, text string) []int {
	for i := range len(text) {
		dst = append(dst, FirstByte+int(text[i]))
	}
	return dst
}

// Detokenize is the text of a list of ids. It ends in a part of a character if the ids do.
func Detokenize(ids []int) string {
	b := make([]byte, 0, len(ids)*wordLen)
	for _, id := range ids {
		b = AppendWord(b, id)
	}
	return string(b)
}

// DetokenizeAll is Detokenize with the names of special ids, which vLLM's streams skip and its
// /detokenize shows.
func DetokenizeAll(ids []int) string {
	b := make([]byte, 0, len(ids)*wordLen)
	for _, id := range ids {
		if id < FirstTextToken && tag(id) == "" {
			b = append(strconv.AppendInt(append(b, "<|"...), int64(id), 10), "|>"...)
			continue
		}
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
func Hex16(x uint64) string { return fmt.Sprintf("%016x", x) }

// maxFine is the longest of the fine tokens, in bytes.
const maxFine = 8

// TokenizeFine is Tokenize of an engine with Options.FineTokens: a run, which is a
// space and what follows it, is one token if it is a word of AppendWord or shorter
// than eight bytes. Every other is cut into tokens of one to eight bytes whose
// lengths depend on the bytes, so that a number of tokens is never a number of
// bytes. As with real vocabularies text that is added changes the last tokens only.
func TokenizeFine(text string) []int {
	return AppendFine(make([]int, 0, len(text)/4+4), text)
}

// AppendFine appends the tokens of TokenizeFine.
func AppendFine(dst []int, text string) []int {
	for i := 0; i < len(text); {
		end := i + 1
		for end < len(text) && text[end] != ' ' {
			end++
		}
		if run := text[i:end]; len(run) <= MaxPiece+1 {
			if id, ok := WordID(run); ok {
				dst, i = append(dst, id), end
				continue
			}
		}
		for i < end {
			n := end - i
			if n >= maxFine {
				n = 1 + int(Mix(load64(text[i:end]))%maxFine)
			}
			dst = append(dst, PieceID(text[i:i+n]))
			i += n
		}
	}
	return dst
}
