// Package observe_test tries what is in deploy for Prometheus and Grafana: the alert
// rules with promtool, rules and board with a real Prometheus that follows proxies.
package observe_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir holds the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }

// deploy is a file of the directory deploy.
func deploy(name ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy"}, name...)...)
}

// tool finds a program of Prometheus. Without it the test is left out, or fails where
// REQUIRE_PROMETHEUS is set.
func tool(t *testing.T, name string) string {
	t.Helper()
	unpacked, err := filepath.Abs(filepath.Join("..", "..", "dist", "prometheus", "usr", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
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
