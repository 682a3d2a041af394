package http1_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/http1"
)

func TestEveryByte(t *testing.T) {
	t.Parallel()
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		b := byte(i)
		if want := strings.IndexByte(token, b) >= 0; http1.IsToken(b) != want {
			t.Errorf("%q in a name: %v", b, !want)
		}
		if want := b == '\t' || b > 31 && b != 127; http1.IsValue(b) != want {
			t.Errorf("%q in a value: %v", b, !want)
		}
	}
}
