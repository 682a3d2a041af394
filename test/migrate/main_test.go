// Package migrate_test starts the proxy with the command lines of the reference
// proxies, as their documents write them, and sends the curl lines of those
// documents. Only ports and host names are replaced. What is asserted here is
// what docs/migrate promises.
package migrate_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir holds the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
