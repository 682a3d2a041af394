package openai

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
)

// special must find the first byte that needs a look, whatever stands around it.
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
		if got != want {
			t.Fatalf("%q: first special byte at %d, want %d", w, got, want)
		}
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

// Strings of every length around the strides, ending or going wrong at every place.
func TestStringsOfEveryLength(t *testing.T) {
	t.Parallel()
	for n := range 80 {
		for at := -1; at < n; at++ {
			for _, c := range []string{`\n`, `\"`, "\x01", "\x1f", "ü", `\u00e9`, `\x`, "\x7f"} {
				text := strings.Repeat("p", n)
				if at >= 0 {
					text = text[:at] + c + text[at:]
				}
				tok := []byte(`"` + text + `"`)
				s := scanner{b: tok}
				end, err := s.str(0)
				if valid := json.Valid(tok); valid != (err == nil) {
					t.Fatalf("%q: %v, encoding/json says %v", tok, err, valid)
				}
				if err == nil && end != len(tok) {
					t.Fatalf("%q ends at %d, want %d", tok, end, len(tok))
				}
			}
		}
	}
}
