// Package browser_test tests the dashboard in a browser, as users see it: headless Chromium with real
// proxies, real etcd and simulated engines.
//
// It needs Chromium (Debian's package chromium; PD_TEST_CHROMIUM names another) and, for the
// accessibility rules, axe-core (cd test/browser/axe && npm ci). Tests that need a missing program are
// skipped unless REQUIRE_BROWSER is set. make screenshots takes the screenshots of docs/dashboard.md.
package browser_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
