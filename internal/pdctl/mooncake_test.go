package pdctl_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestMooncakeSegments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ln := testkit.Listen(t)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	dead := testkit.FreePort(t)
	_, deadPort, _ := net.SplitHostPort(dead)
	r.put("/pd/decode/127.0.0.1:8200", `{"models":["m"]}`)
	segment := func(below, name, host, port string) {
		r.put("mooncake/"+below+"ram/"+name, `{"name":"x","protocol":"tcp"}`)
		r.put("mooncake/"+below+"rpc_meta/"+name, fmt.Sprintf(`{"ip_or_host_name":%q,"rpc_port":%s}`+"\n", host, port))
	}
	segment("", "127.0.0.1:12001", "127.0.0.1", port)
	segment("", "127.0.0.1:12002", "127.0.0.1", deadPort)
	segment("c1/", "127.0.0.2:12003", "127.0.0.2", deadPort)
	r.put("mooncake/ram/127.0.0.1:12004", `{}`)
	r.put("mooncake/checkpoint/x", `{}`)
	r.want(0, "SEGMENT          CLUSTER  RPC              INSTANCES              STALE\n"+
		"127.0.0.1:12001  -        "+pad("127.0.0.1:"+port)+"  decode/127.0.0.1:8200  -\n"+
		"127.0.0.1:12002  -        "+pad(dead)+"  decode/127.0.0.1:8200  not listening\n"+
		"127.0.0.1:12004  -        "+pad("-")+"  decode/127.0.0.1:8200  no rpc_meta\n"+
		"127.0.0.2:12003  c1       "+pad("127.0.0.2:"+deadPort)+"  -                      not listening, no instance on the host\n",
		"mooncake", "segments")
}

func pad(s string) string { return fmt.Sprintf("%-15s", s) }

// No command of pdctl changes Mooncake's keys.
func TestMooncakeKeys_Untouched(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, k := range []string{"mooncake/ram/127.0.0.1:1", "mooncake/rpc_meta/127.0.0.1:1", "mooncake-store/c/master_view", "/oplog/c/batches/1"} {
		r.put(k, `{"ip_or_host_name":"127.0.0.1","rpc_port":1}`)
	}
	theirs := func() (out []string) {
		for _, prefix := range []string{"mooncake", "/oplog/"} {
			resp, err := r.cli.Get(t.Context(), prefix, clientv3.WithPrefix())
			require.NoError(t, err)
			for _, kv := range resp.Kvs {
				out = append(out, fmt.Sprintf("%s %d %s", kv.Key, kv.ModRevision, kv.Value))
			}
		}
		return out
	}
	before := theirs()
	const at = "127.0.0.1:1"
	for _, args := range [][]string{
		{"add", "decode", at, "--no-verify"}, {"cordon", "decode", at}, {"uncordon", "decode", at}, {"drain", "decode", at}, {"undrain", "decode", at},
		{"weight", "decode", at, "7"}, {"list"}, {"status"}, {"get", "decode/" + at}, {"history"}, {"export"}, {"mooncake", "segments"}, {"remove", "decode", at}, {"allow", "decode", at},
	} {
		r.ok(args...)
	}
	r.run("doctor", "--agents=false", "--probe", "--timeout", "200ms")
	r.run("restore", "decode", at)
	r.run("forget", "decode", at)
	d := cmp.Diff(before, theirs())
	assert.True(t, d == "" && len(before) == 4, d)
}
