//go:build linux || darwin || freebsd || netbsd || openbsd

package strscan

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Nothing in front of a text is read, and nothing behind it: it begins, or ends,
// at a page that cannot be.
func TestBesideAPageThatCannotBeRead(t *testing.T) {
	t.Parallel()
	page := os.Getpagesize()
	m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{m[:page], m[2*page:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	text := m[page : 2*page : 2*page]
	for i := range text {
		text[i] = 'p'
	}
	for n := range 400 {
		check(t, text[:n:n])
		b := text[page-n:]
		check(t, b)
		for _, e := range []string{`\`, `\u`, `\u12`, `\u00e9`, `\n`, `"`, "é"} {
			if len(e) <= n {
				copy(b[n-len(e):], e)
				check(t, b)
				copy(b[n-len(e):], "pppppp")
			}
		}
	}
	check(t, text)
}
