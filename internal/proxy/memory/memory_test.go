package memory

import (
	"errors"
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// The settings of the garbage collector are global, so this test is not parallel.
func TestTune(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) })
	machine, err := memlimit.FromSystem()
	require.NoError(t, err)
	most := int64(machine / 2)
	if container, err := memlimit.FromCgroup(); err == nil {
		most = int64(container / 10 * 9)
	} else if !errors.Is(err, memlimit.ErrNoLimit) {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		env     map[string]string
		percent int
		limit   int64
	}{
		{"GOGC and GOMEMLIMIT are set", map[string]string{"GOGC": "100", "GOMEMLIMIT": "off"}, 100, math.MaxInt64},
		{"GOGC is set", map[string]string{"GOGC": "100"}, 100, most},
		{"nothing is set", nil, garbagePercent, most},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
				t.Setenv(name, tc.env[name])
				if tc.env[name] == "" {
					_ = os.Unsetenv(name) // t.Setenv restores the previous value
				}
			}
			require.NoError(t, Tune())
			got := debug.SetGCPercent(100)
			assert.Equal(t, tc.percent, got, "%d %%, want %d", got, tc.percent)
			assert.Equal(t, tc.limit, debug.SetMemoryLimit(math.MaxInt64), "limit in bytes")
		})
	}
}

// The memory limit is global, so this test is not parallel.
func TestBodiesMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	var byLimit, given config.Proxy
	given.MaxBodiesMemory = 5 << 20
	for _, tc := range []struct {
		limit int64
		cfg   *config.Proxy
		want  int64
	}{
		{1 << 30, &byLimit, 512 << 20},
		{20 << 20, &byLimit, leastBodies},
		{1 << 30, &given, 5 << 20},
		{math.MaxInt64, &given, 5 << 20},
		{math.MaxInt64, &byLimit, unlimitedBodies},
	} {
		debug.SetMemoryLimit(tc.limit)
		assert.Equal(t, tc.want, Bodies(tc.cfg), "limit %d, setting %d: bytes", tc.limit, tc.cfg.MaxBodiesMemory)
	}
}

func TestMain(m *testing.M) { leak.Main(m) }
