// Package browser_test looks at the dashboard with a browser, as people do: Chromium
// without a window, before real proxies, real etcd and simulated engines.
//
// It needs Chromium (Debian's package chromium; PD_TEST_CHROMIUM names another), and for the
// rules of accessibility axe-core (cd test/browser/axe && npm ci). What is missing leaves
// tests out, unless REQUIRE_BROWSER is set. make screenshots takes the pictures of
// docs/dashboard.md.
package browser_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir holds the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
