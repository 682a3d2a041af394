//go:build linux || darwin || freebsd || netbsd || openbsd

package utf8scan

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Nothing in front of a text is read, and nothing behind it: it begins, or ends,
// at a page that cannot be.
func TestBesideAPageThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const piece = 1 << 20
	page := os.Getpagesize()
	size := piece + page
	m, err := unix.Mmap(-1, 0, page+size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{m[:page], m[page+size:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	text := m[page : page+size : page+size]
	for _, fill := range []string{"p", "é", "人", "😀", "a人"} {
		for cut := range len(fill) {
			some := strings.Repeat(fill, 500)[cut:]
			copy(text, some)
			copy(text[size-len(some):], some)
			for n := range 400 {
				check(t, text[:n:n])
				check(t, text[size-n:])
			}
		}
	}
	// What is left behind a whole piece may be short.
	for i := range text {
		text[i] = 'p'
	}
	for n := range 140 {
		if b := text[size-piece-n:]; !Valid(b) || wide() && blocks(b) < len(b) {
			t.Fatalf("%d bytes behind a piece: %d of %d", n, blocks(b), len(b))
		}
	}
}
