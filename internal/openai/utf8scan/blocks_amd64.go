//go:build !purego

package utf8scan

import (
	"unicode/utf8"

	"golang.org/x/sys/cpu"
)

const (
	// before is how many bytes decide, together with a byte itself, whether that
	// byte may stand where it does: a character has at most three more.
	before = 3

	// least is the length from which on one block can be laid over the last bytes
	// so that all of those that it needs to know are there.
	least = before + 64

	// piece bounds one call of the assembly, which the scheduler cannot interrupt:
	// a megabyte takes it less than a tenth of a millisecond.
	piece = 1 << 20
)

// blocks passes characters at the start of b in blocks of 64 bytes. In what is
// UTF-8 and not short it passes all; where it finds a fault it stops, not right in
// front of it, but in front of the piece that has it.
func blocks(b []byte) (n int) {
	if len(b) < least || !cpu.X86.HasAVX2 || !begins(b) {
		return 0
	}
	for at := before; at < len(b); {
		end := min(len(b), at+piece)
		// A short rest is looked at together with what is in front of it.
		from := min(at, end-64)
		if !blocksAVX2(&b[from], end-from) {
			break
		}
		n = whole(b[:end])
		at = end
	}
	return n
}

// begins tells that the first bytes of b, before which there is nothing, may stand
// where they do.
func begins(b []byte) bool {
	for n := 0; n < before; {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			return false
		}
		n += size
	}
	return true
}

// whole gives the length of b without a character at its end that more bytes
// belong to. All bytes of b may stand where they do.
func whole(b []byte) int {
	n := len(b)
	switch {
	case b[n-1] >= 0xc0:
		return n - 1
	case b[n-2] >= 0xe0:
		return n - 2
	case b[n-3] >= 0xf0:
		return n - 3
	}
	return n
}

// blocksAVX2 tells whether each of the n bytes at p may stand where it does,
// behind the three bytes before it, which are read as well, as is nothing else.
// n must be at least 64. That a character ends within n is not asked for.
//
//go:noescape
func blocksAVX2(p *byte, n int) (ok bool)
