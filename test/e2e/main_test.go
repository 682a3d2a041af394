// Package e2e_test runs the built programs as processes, as users do.
package e2e_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
