package http1

import (
	"strings"
	"testing"
)

func TestEveryByte(t *testing.T) {
	t.Parallel()
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		b := byte(i)
		if want := strings.IndexByte(token, b) >= 0; IsToken(b) != want {
			t.Errorf("%q in a name: %v", b, !want)
		}
		if want := b == '\t' || b > 31 && b != 127; isValue(b) != want {
			t.Errorf("%q in a value: %v", b, !want)
		}
	}
}
