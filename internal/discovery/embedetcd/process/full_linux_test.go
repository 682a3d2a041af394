package process_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// If the disk is full when the proxy starts, etcd is started once
// there is space; meanwhile the proxy runs without it.
func TestStart_DiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount needs a privilege: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	cfg, out := config(t, dir)
	cfg.ListenClient = testkit.FreePort(t)
	h := start(t, cfg)
	assert.Contains(t, h.State().Ended, "no space left on device")
	assert.Equal(t, cfg.ListenClient, h.Endpoint())
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=300m"))
	testkit.Eventually(t, soon, runs(h))
	_, err := etcdtest.Client(t, h.Endpoint()).Put(t.Context(), "/k", "v")
	assert.NoError(t, err)
	testkit.Contains(t, out.String(), "trying again", "serves again")
}
