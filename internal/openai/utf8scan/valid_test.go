package utf8scan

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortest is from where on blocks has to pass all that is UTF-8, if it is there.
const shortest = 67

// check holds Valid and blocks against the standard library.
func check(t *testing.T, b []byte) {
	t.Helper()
	want := utf8.Valid(b)
	if Valid(b) != want {
		t.Fatalf("Valid(%q) = %v", b, !want)
	}
	n := blocks(b)
	if n < 0 || n > len(b) || !utf8.Valid(b[:n]) {
		t.Fatalf("blocks(%q) = %d, which is not UTF-8", b, n)
	}
	if want && wide() && len(b) >= shortest && n < len(b) {
		t.Fatalf("blocks(%q) = %d of %d", b, n, len(b))
	}
}

// longEnough is the length of a text that has two groups of blocks, and a last block
// that is laid over its end.
const longEnough = 3 + 2*128 + 40

// within puts sequences into an ASCII text, between two characters or two pieces of
// such, and holds Valid against the standard library.
func within(t *testing.T, text []byte, in, seq, behind string, places ...int) {
	t.Helper()
	seq = in + seq + behind
	want := utf8.ValidString(seq)
	for _, place := range places {
		place = min(place, len(text)-len(seq))
		if place -= len(in); place < 0 {
			continue
		}
		copy(text[place:], seq)
		if Valid(text) != want {
			t.Fatalf("%q at %d of %d: %v", seq, place, len(text), !want)
		}
		copy(text[place:], "pppppppppppp"[:len(seq)])
	}
}

// Every sequence of one and of two bytes, at every place around the edges of
// registers, blocks, groups and the text, and with characters of every length
// around it.
func TestSequences(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("p"), longEnough)
	for _, tc := range []struct {
		beside string
		places []int
	}{
		{"", []int{0, 1, 2, 3, 4, 33, 34, 35, 36, 65, 66, 67, 68, 69, 129, 130, 131, 132, 133, longEnough - 1, longEnough}},
		{"é", []int{2, 34, 66, 67, 131, longEnough}},
		{"人", []int{3, 34, 66, 67, 131, longEnough}},
		{"😀", []int{4, 34, 66, 67, 131, longEnough}},
	} {
		for a := range 256 {
			within(t, text, tc.beside, string([]byte{byte(a)}), tc.beside, tc.places...)
			// In the short form every second byte has been tried behind some first one.
			step := longform.Count(4, 1)
			for b := a % step; b < 256; b += step {
				within(t, text, tc.beside, string([]byte{byte(a), byte(b)}), tc.beside, tc.places...)
			}
		}
	}
}

// Every sequence of three bytes that begins a character, across the edge of a
// register. At more places those with a last byte that just is, or just is not, one
// of a character; of four bytes every beginning with two of these.
func TestLongSequences(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("p"), longEnough)
	const edge = 3 + 32
	short := bytes.Repeat([]byte("p"), shortest+3)
	three := short[edge-1 : edge+2]
	limits := []byte{0x7f, 0x80, 0xbf, 0xc0}
	for a := 0xc0; a < 256; a++ {
		for b := range 256 {
			for c := 0; c < 256; c += longform.Count(15, 1) { // those below are tried in any case
				three[0], three[1], three[2] = byte(a), byte(b), byte(c)
				if got := Valid(short); got != utf8.Valid(three) {
					t.Fatalf("%q: %v", three, got)
				}
			}
			for _, c := range limits {
				within(t, text, "", string([]byte{byte(a), byte(b), c}), "", 0, 1, 2, 3, 33, 34, 35, 65, 66, 67, 129, 130, 131, longEnough)
				if a < 0xf0 {
					continue
				}
				for _, d := range limits {
					within(t, text, "", string([]byte{byte(a), byte(b), c, d}), "", 0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67, 130, longEnough)
				}
			}
		}
	}
}

// Texts of every length and at every place beside the width of a register, cut
// wherever a character may be cut.
func TestEveryLength(t *testing.T) {
	t.Parallel()
	for _, fill := range []string{"p", "é", "人", "😀", "aé人😀", "p😀", "pp人"} {
		text := []byte(strings.Repeat(fill, 400))
		for n := range 301 {
			for start := 0; start < 33; start += longform.Count(5, 1) {
				check(t, text[start:start+n])
			}
		}
	}
}

// One byte of a text is another, at every place.
func TestOneByteWrong(t *testing.T) {
	t.Parallel()
	parts := []string{"p", "plain text of some length that has nothing else, ", "é", "ß", "人", "\u0800", "\ud7ff", "\ue000", "\uffff", "😀", "\U00010000", "\U0010ffff"}
	for seed := range uint64(longform.Count(10, 40)) {
		r := rand.New(rand.NewPCG(seed, 4))
		var b []byte
		for n := r.IntN(400); len(b) < n; {
			b = append(b, parts[r.IntN(len(parts))]...)
		}
		check(t, b)
		for i, was := range b {
			for _, c := range []byte{0, 'p', 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xf8, 0xff, byte(r.Uint32())} {
				b[i] = c
				check(t, b)
			}
			b[i] = was
		}
	}
}

// A call of the assembly takes a piece at most: characters lie across its end, and
// behind it there are few bytes or many.
func TestPieces(t *testing.T) {
	t.Parallel()
	const first = 3 + 1<<20 // where the second piece begins
	text := bytes.Repeat([]byte("p"), first+100)
	for _, rest := range []int{0, 1, 2, 3, 4, 63, 64, 65, 100} {
		b := text[:first+rest]
		for _, seq := range []string{"é", "😀", "\x80", "\xe4\xba", "\xf0\x9f\x98", "\xed\xa0\x80"} {
			for at := first - 4; at <= min(first+3, len(b)); at++ {
				n := copy(b[at:], seq)
				want := utf8.ValidString(seq[:n])
				if Valid(b) != want {
					t.Fatalf("%q at %d of %d: %v", seq, at, len(b), !want)
				}
				passed := blocks(b)
				if !utf8.Valid(b[min(passed, first-10):passed]) || wide() && want && passed < len(b) {
					t.Fatalf("%q at %d of %d: blocks passes %d", seq, at, len(b), passed)
				}
				copy(b[at:], "pppp")
			}
		}
	}
}

// FuzzValid holds the assembly against the standard library.
func FuzzValid(f *testing.F) {
	for _, s := range []string{
		"", "model", "é", "\xff", strings.Repeat("p", 70), strings.Repeat("人", 50), strings.Repeat("é", 80) + "\xc3", strings.Repeat("😀", 33) + "p\xf0\x9f\x98",
		strings.Repeat("p", 127) + "人工智能", strings.Repeat("пр", 40) + "\xed\xa0\x80", strings.Repeat("p", 64) + "\xc0\xaf" + strings.Repeat("p", 64), "\xf4\x90\x80\x80",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, b)
		// Short inputs do not reach the assembly, and all begin at the same place:
		// the same behind other text, and in front of it.
		for _, fill := range []string{"p", "人"} {
			check(t, append([]byte(strings.Repeat(fill, shortest+len(b)%64)), b...))
			check(t, []byte("pp"[:len(b)%3]+string(b)+strings.Repeat(fill, shortest)))
		}
	})
}
