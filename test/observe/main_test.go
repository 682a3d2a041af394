// Package observe_test tests the Prometheus and Grafana files in deploy: the alert rules with promtool, rules
// and dashboard with a real Prometheus that scrapes proxies.
package observe_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }

// deploy returns the path of a file in the directory deploy.
func deploy(name ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy"}, name...)...)
}

// tool finds a Prometheus program. If it is missing, the test is skipped, or fails if REQUIRE_PROMETHEUS is
// set.
func tool(t *testing.T, name string) string {
	t.Helper()
	unpacked, err := filepath.Abs(filepath.Join("..", "..", "dist", "prometheus", "usr", "bin", name))
	require.NoError(t, err)
	for _, try := range []string{unpacked, name} {
		if path, err := exec.LookPath(try); err == nil {
			return path
		}
	}
	const missing = "no %s: scripts/get-prometheus.sh unpacks Debian's, or have one in PATH"
	if os.Getenv("REQUIRE_PROMETHEUS") != "" {
		t.Fatalf(missing, name)
	}
	t.Skipf(missing, name)
	return ""
}
