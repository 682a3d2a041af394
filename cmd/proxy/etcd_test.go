package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// If the files of the embedded etcd are damaged, the proxy ends with a separate exit code. Its message names
// the directory and how to restore the instances.
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

// /status has a notice if the membership cannot be saved.
func TestUnwritableStateDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	testkit.WriteFile(t, dir, "")
	p := runProxy(t, "--etcd-endpoints", etcdtest.Start(t).Endpoint(), "--state-dir", dir, "--decode", "127.0.0.1:9")
	testkit.Eventually(t, tlsPatience, func() error {
		if text, err := p.get(http.DefaultClient, "/status"); err != nil || !strings.Contains(text, "cannot be saved to --state-dir: mkdir "+dir) {
			return fmt.Errorf("%w\n%s", err, text)
		}
		return nil
	})
}
