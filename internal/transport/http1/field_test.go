package http1

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/assert"
)

func TestEveryByte(t *testing.T) {
	t.Parallel()
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		b := byte(i)
		assert.Equal(t, IsToken(b), strings.IndexByte(token, b) >= 0, "%q in a name", b)
		assert.Equal(t, isValue(b), b == '\t' || b > 31 && b != 127, "%q in a value", b)
	}
}
