// Package migrate_test starts the proxy with the command lines of the reference proxies as documented,
// and sends the curl lines of those documents. Only ports and host names are replaced. The tests assert
// the guarantees of docs/migrate.
package migrate_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
