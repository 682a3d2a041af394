package http1

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryByte(t *testing.T) {
	t.Parallel()
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		b := byte(i)
		assert.Equal(t, strings.IndexByte(token, b) >= 0, IsToken(b), "%q in a name", b)
		assert.Equal(t, b == '\t' || b > 31 && b != 127, isValue(b), "%q in a value", b)
	}
}
