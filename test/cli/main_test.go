// Package cli_test runs the examples in pdctl's help and documentation against a fleet.
package cli_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
