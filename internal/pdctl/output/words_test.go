package output_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestByteSize(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 10: "1.0 KiB", 25 << 20: "25.0 MiB", 3 << 40: "3.0 TiB", 1 << 60: "1048576.0 TiB"} {
		assert.Equal(t, want, output.ByteSize(n), n)
	}
}
