package embedetcd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

func config(t testing.TB, listen string) embedetcd.Config {
	t.Helper()
	return embedetcd.Config{ListenClient: listen, DataDir: filepath.Join(t.TempDir(), "etcd"), Gateway: true, Prefix: "/pd", Unsynced: true}
}

func start(t testing.TB, cfg embedetcd.Config) *embedetcd.Server {
	t.Helper()
	s, err := embedetcd.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func TestKeepsItsData(t *testing.T) {
	t.Parallel()
	cfg := config(t, strings.Replace(testkit.FreePort(t), "127.0.0.1", "localhost", 1))
	s := start(t, cfg)
	cli := etcdtest.Client(t, s.Endpoint())
	info, err := os.Stat(cfg.DataDir)
	require.NoError(t, err, "data directory")
	require.EqualValues(t, 0o700, info.Mode().Perm(), "data directory")
	members.Put(t, cli, "/pd/x", "kept")
	assert.True(t, s.Checkpoints(), "time limits begin again with each start")
	s.Close() // with a client connected
	start(t, cfg)
	resp, err := cli.Get(t.Context(), "/pd/x")
	require.True(t, err == nil && len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == "kept", "%v, %v", resp, err)
}
