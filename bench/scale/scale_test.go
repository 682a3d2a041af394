package scale_test

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/scale"
	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }

// A small fleet changes and loses no request, and every figure is measured.
func TestRun(t *testing.T) {
	t.Parallel()
	o := scale.Options{BinDir: binDir, Instances: 40, Proxies: 2, Changes: 400, Duration: 9 * time.Second, Rate: 10, Progress: io.Discard}
	r, err := scale.Run(t.Context(), o)
	require.NoError(t, err)
	c := r.Changing
	if c.Missed > 0 || c.Changes < 30 || c.Requests < 90 || c.Seen.Count() < 2 || c.TTFT.Count() != uint64(c.Requests) {
		t.Errorf("%d failed changes, %d changes, %d requests, %d times to the picker, %d times to the first token", c.Missed, c.Changes, c.Requests, c.Seen.Count(), c.TTFT.Count())
	}
	if c.ProxyCPU <= 0 || c.EtcdCPU <= 0 || c.Received <= 0 || c.Memory.Proxy <= 0 || c.Memory.Etcd <= 0 {
		t.Errorf("CPU %v and %v, %v bytes, memory %v", c.ProxyCPU, c.EtcdCPU, c.Received, c.Memory)
	}
	table := r.Table()
	assert.True(t, strings.Count(table, "\n|") == 15 && !strings.Contains(table, "NaN"), "table:%s", table)
}
