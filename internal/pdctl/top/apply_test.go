package top

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/dryrun"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) {
	leak.Main(m)
}

// Every change is written to etcd.
func TestApply(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	layout := members.Layout(t)
	for _, key := range []string{"prefill/10.0.0.1:1", "decode/10.0.0.1:1", "prefill/10.0.0.2:1", "decode/10.0.0.2:1"} {
		members.Put(t, cli, "/pd/"+key, `{"v":1,"models":["chat"],"connector":"nixl","state":"ready"}`)
	}
	intents := store.New(cli, layout, "test").Intents
	k := instance.Key{Role: instance.Decode, Address: "10.0.0.1:1"}
	for _, tc := range []struct {
		x         change
		key, want string // a text in the override of this key and in the outcome
	}{
		{change{key: k, verb: "drain", reason: "new disks"}, `"state":"drain"`, "drain decode/10.0.0.1:1: done, revision "},
		{change{key: k, verb: "drain", reason: "new disks"}, "new disks", "drain decode/10.0.0.1:1: nothing to change"},
		{change{key: k, verb: "uncordon"}, "", "failed: not done: decode/10.0.0.1:1 is drained"},
		{change{key: k, verb: "undrain"}, "", "undrain decode/10.0.0.1:1: done"},
		{change{key: k, verb: "weight", weight: 30}, `"weight":30`, "weight decode/10.0.0.1:1: done"},
		{change{key: k, verb: "role", role: instance.Prefill, usual: "nixl"}, `"drain"`, "role decode/10.0.0.1:1: done"},
	} {
		got := tc.x.apply(t.Context(), intents, false)
		assert.True(t, strings.HasPrefix(got, tc.want), "%+v: %q", tc.x, got)
		resp, err := cli.Get(t.Context(), layout.Override(k))
		require.NoError(t, err)
		value := ""
		for _, kv := range resp.Kvs {
			value = string(kv.Value)
		}
		assert.Contains(t, value, tc.key, "%+v: %s", tc.x, value)
	}
}

// A change of a dry run is not shown as done.
func TestApplyDryRun(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	layout := members.Layout(t)
	k := instance.Key{Role: instance.Decode, Address: "10.0.0.1:1"}
	_, err := server.Client(t).Put(t.Context(), layout.Instance(k), `{"v":1}`)
	require.NoError(t, err)
	dry := dryrun.Run{On: true}
	cli := members.DialWith(t, etcd.Config{Endpoints: []string{server.Endpoint()}, Intercept: dry.Interceptor()})
	got := change{key: k, verb: "drain"}.apply(t.Context(), store.New(cli, layout, "test").Intents, true)
	if len(dry.Planned()) == 0 || strings.Contains(got, "done") || !strings.Contains(got, "nothing is written") {
		t.Errorf("%q, %+v", got, dry.Planned())
	}
}
