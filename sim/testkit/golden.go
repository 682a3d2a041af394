package testkit

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// update is looked up and not kept in a variable: several packages of one test
// binary may use Golden, and none of them should own a flag by being imported.
func update() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

// GoldenFlag registers -update. A test package that uses Golden calls it at
// the start of its TestMain.
func GoldenFlag() {
	if flag.Lookup("update") == nil {
		flag.Bool("update", false, "write golden files instead of comparing with them")
	}
}

// Golden compares got with the file at path, below the package's directory.
// With -update it writes the file.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if update() {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("golden %s: %v (run the test with -update to write it)", path, err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Fatalf("golden %s differs (-want +got):\n%s", path, diff)
	}
}
