package embedetcd_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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

func TestServesGRPC(t *testing.T) {
	t.Parallel()
	cfg := config(t, "localhost:0")
	s := start(t, cfg)
	cli := etcdtest.Client(t, s.Endpoint())
	watch := cli.Watch(t.Context(), "/pd/prefill/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	resp := <-watch
	require.True(t, resp.Created, "%+v", resp)
	members.Put(t, cli, "/pd/prefill/10.0.0.1:8100", "")
	resp = <-watch
	require.Equal(t, 1, len(resp.Events), "%+v", resp)
	info, err := os.Stat(cfg.DataDir)
	require.NoError(t, err, "data directory")
	require.EqualValues(t, 0o700, info.Mode().Perm(), "data directory")
}

func TestKeepsItsData(t *testing.T) {
	t.Parallel()
	cfg := config(t, testkit.FreePort(t))
	s := start(t, cfg)
	cli := etcdtest.Client(t, s.Endpoint())
	members.Put(t, cli, "/pd/x", "kept")
	assert.True(t, s.Checkpoints(), "time limits begin again with each start")
	s.Close() // with a client connected
	start(t, cfg)
	resp, err := cli.Get(t.Context(), "/pd/x")
	require.True(t, err == nil && len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == "kept", "%v, %v", resp, err)
}
