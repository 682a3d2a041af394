package accesslog

import (
	"bytes"
	"slices"
	"testing"
)

// isPlain is what stands for itself between quotes.
func isPlain(c byte) bool { return c >= ' ' && c <= '~' && c != '"' && c != '\\' }

// Every byte is recognised wherever it stands, and whatever stands beside it.
func TestBareAndPlain(t *testing.T) {
	t.Parallel()
	checkAll := func(v []byte) {
		t.Helper()
		all := func(is func(byte) bool) bool {
			return !slices.ContainsFunc(v, func(c byte) bool { return !is(c) })
		}
		if want := all(isBare) && len(v) > 0; bare(string(v)) != want {
			t.Errorf("bare(%q) is %t", v, !want)
		}
		if want := all(isPlain); plain(string(v)) != want {
			t.Errorf("plain(%q) is %t", v, !want)
		}
	}
	for n := range 35 {
		for _, filler := range []byte{'+', 'a', 'z'} {
			v := bytes.Repeat([]byte{filler}, n)
			checkAll(v)
			for i := range v {
				for c := range 256 {
					v[i] = byte(c)
					checkAll(v)
				}
				v[i] = filler
			}
		}
	}
	for _, n := range []int{2, 3, 5, 8, 11} {
		v := bytes.Repeat([]byte{'m'}, n)
		for c := range 256 * 256 {
			v[n/2-1], v[n/2] = byte(c>>8), byte(c)
			checkAll(v)
		}
	}
}
