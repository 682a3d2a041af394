package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// plain is a reference for text that reads byte by byte.
func plain(b []byte) (n int, ascii bool) {
	ascii = true
	for n < len(b) {
		switch c := b[n]; {
		case c == '\\':
			rest := b[n+1:]
			switch {
			case len(rest) >= 1 && strings.IndexByte(`"\/bfnrt`, rest[0]) >= 0:
				n += 2
			case len(rest) >= 5 && rest[0] == 'u' && len(bytes.Trim(rest[1:5], "0123456789abcdefABCDEF")) == 0:
				n += 6
			default:
				return n, ascii
			}
		case c == '"' || c < ' ':
			return n, ascii
		default:
			ascii = ascii && c < 0x80
			n++
		}
	}
	return n, ascii
}

// check compares text and shortText with plain.
func check(t *testing.T, b []byte) {
	t.Helper()
	want, wantASCII := plain(b)
	n, ascii := text(b)
	require.True(t, n == want && ascii == wantASCII, "text(%q) = %d, %v; want %d, %v", b, n, ascii, want, wantASCII)
	if n := shortText(b); n >= 0 && (n != want || !wantASCII || b[n] != '"') || n < 0 && len(b) >= 8 && want < 8 && wantASCII && b[want] == '"' && bytes.IndexByte(b[:want], '\\') < 0 {
		t.Fatalf("shortText(%q) = %d, want %d", b, n, want)
	}
}

// special must find the first byte that needs a closer look, whatever the bytes next to it.
func TestSpecial(t *testing.T) {
	t.Parallel()
	check := func(w [8]byte) {
		t.Helper()
		want := 8
		for i, c := range w {
			if c == '"' || c == '\\' || c < 0x20 {
				want = i
				break
			}
		}
		got := bits.TrailingZeros64(special(binary.LittleEndian.Uint64(w[:]))&highBits) >> 3
		require.Equal(t, want, got, "%q: first special byte at", w)
	}
	for c := range 256 {
		for at := range 8 {
			for _, around := range []byte{'a', 0x20, 0x21, 0x23, 0x5b, 0x5d, 0x7f, 0x80, 0xff} {
				w := [8]byte{around, around, around, around, around, around, around, around}
				w[at] = byte(c)
				check(w)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], r.Uint64())
		check(w)
	}
}

// Texts have every length, with every kind of byte at every position and alignment. The expected result does
// not depend on plain.
func TestScan_EveryByteEveryPosition(t *testing.T) {
	t.Parallel()
	line := bytes.Repeat([]byte("p"), 64+200)
	for n := range 201 {
		for start := 0; start < 32; start += longform.Count(5, 1) {
			b := line[start : start+n]
			for at := range b {
				for _, c := range []byte{'"', '\\', 0, 0x1f, ' ', 0x7f, 0x80} {
					b[at] = c
					want, wantASCII := n, true
					switch {
					case c == 0x80:
						wantASCII = false
					case c != ' ' && c != 0x7f:
						want = at
					}
					if got, ascii := text(b); got != want || ascii != wantASCII {
						t.Fatalf("%#x at %d of %d, %d bytes off: %d, %v", c, at, n, start, got, ascii)
					}
				}
				b[at] = 'p'
			}
		}
	}
}

func TestAllBytes(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		for at := range 160 {
			b := bytes.Repeat([]byte("p"), 160)
			b[at] = byte(c)
			check(t, b)
			b[max(at-1, 0)] = '\\' // the backslash escapes it
			check(t, b)
		}
	}
}

// Escapes of all kinds, good ones and bad ones, at every position.
func TestEscapes(t *testing.T) {
	t.Parallel()
	for _, e := range []string{
		`\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u00e9`, `\uABCD`, `\uabcd`, `\u0123`, `\u4567`, `\u89fF`,
		`\v`, `\x41`, `\U0041`, `\'`, `\é`, `\0`, `\`, `\\\`, `\\\\`, `\\\\\`, `\\\\\\\\\\\\\\\\\`, `\u`, `\u1`, `\u12`, `\u123`,
		`\u12g4`, `\u 123`, `\u123/`, `\u123:`, `\u123@`, `\u123G`, "\\u123`", `\u123"`, `\u\n123`, "\\u12\x01", "\\\x01", "\\\x80", "\\u123\xb1",
		`\"\"\"\"\"\"\"\"`, `"\"`, `\\"`, `\\\"`, `\n\u0041\n`, `\u0041\u0042\u0043`, `\u0041\u004`, `\u0041\x`, "\n\\x", `"\x`, `\\u004`, `\u005c"`,
	} {
		for n := range 200 {
			for _, text := range []string{
				strings.Repeat("p", n) + e,
				strings.Repeat("p", n) + e + strings.Repeat("q", 70),
				strings.Repeat("p", n) + e + strings.Repeat(`\n`, 40) + `"`,
				strings.Repeat(`\\`, n/2) + strings.Repeat("p", n%2) + e + `","next":1}` + strings.Repeat(" ", 70),
				strings.Repeat("é", n/2) + strings.Repeat("p", n%2) + e + strings.Repeat("q", 70),
				strings.Repeat("p", n) + e + `"é` + strings.Repeat("q", 70),
			} {
				check(t, []byte(text))
			}
		}
	}
}

// Random mixtures of text, escapes and invalid escapes.
func TestRandom(t *testing.T) {
	t.Parallel()
	parts := []string{`\`, `"`, `\"`, `\\`, `\n`, `\u12aF`, `\u`, "u", "12", "f", "g", "x", "é", "\xff", "\x01", "plain text that is of some length, "}
	for seed := range uint64(longform.Count(5_000, 50_000)) {
		r := rand.New(rand.NewPCG(seed, 3))
		var b []byte
		for range r.IntN(60) {
			p := parts[r.IntN(len(parts))]
			// Parts that end the text are rare; otherwise texts would be very short.
			if (p == `\` || p == `"` || p == `\u` || p == "\x01") && r.IntN(12) > 0 {
				p = "word "
			}
			b = append(b, p...)
		}
		check(t, b)
	}
}

// FuzzText compares text with a loop over the bytes.
func FuzzText(f *testing.F) {
	for _, s := range []string{
		"", "model", `a\n`, `\u00e9"`, `\u12`, strings.Repeat("p", 63) + `\n` + strings.Repeat("p", 63) + `\u12ab` + strings.Repeat("p", 63),
		strings.Repeat(`\\`, 64) + `"`, strings.Repeat("é", 64) + "\x1f", strings.Repeat(`\u4f60`, 40), strings.Repeat(`\"`, 80),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, b)
		// The same bytes at other alignments.
		check(t, append(bytes.Repeat([]byte("p"), 64+len(b)%64), b...))
		check(t, append(bytes.Repeat([]byte(`\\`), 64), b...))
	})
}
