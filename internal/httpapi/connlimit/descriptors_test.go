package connlimit

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestByDescriptors(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]int{10: 1, 256: 104, 1024: 448, 20000: 9488, 1 << 20: 523776, 1 << 30: 0, 1<<64 - 1: 0} {
		assert.Equal(t, want, byDescriptors(n), "%d descriptors: clients", n)
	}
	assert.GreaterOrEqual(t, ByDescriptors(), 0, "less than nothing")
}
