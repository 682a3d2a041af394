package httpfield_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/httpfield"
)

func TestEveryByte(t *testing.T) {
	t.Parallel()
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		b := byte(i)
		if want := strings.IndexByte(token, b) >= 0; httpfield.IsToken(b) != want {
			t.Errorf("%q in a name: %v", b, !want)
		}
		if want := b == '\t' || b > 31 && b != 127; httpfield.IsValue(b) != want {
			t.Errorf("%q in a value: %v", b, !want)
		}
	}
}
