package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// Damaged files of the embedded etcd have an exit code of their own, and a message
// that names the directory and what brings the instances back.
func TestDamagedEtcd(t *testing.T) {
	dir := t.TempDir()
	snap := filepath.Join(dir, "member", "snap")
	require.NoError(t, os.MkdirAll(snap, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(snap, "db"), bytes.Repeat([]byte("damage"), 10000), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "wal"), 0o700))
	testkit.WriteFile(t, filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal"), "")
	code, _, errs := ask(t, nil, "--port", "0", "--etcd-listen", testkit.FreePort(t), "--etcd-data-dir", dir, "--state-dir", t.TempDir())
	if code != exitDamaged || !strings.Contains(errs, dir) || !strings.Contains(errs, "--state-dir") || strings.Contains(errs, "goroutine ") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}
