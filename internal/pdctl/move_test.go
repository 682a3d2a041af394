package pdctl_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// raw returns the values below a prefix in etcd, by key, without the audit log.
func (r *rig) raw(prefix string) map[string]string {
	r.t.Helper()
	resp, err := r.cli.Get(r.t.Context(), prefix, clientv3.WithPrefix())
	require.NoError(r.t, err)
	out := map[string]string{}
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); !strings.HasPrefix(key, "/pd/audit/") {
			out[key] = string(kv.Value)
		}
	}
	return out
}

// export writes an export to a file, and returns its path and the output on stderr.
func (r *rig) export() (path, notes string) {
	r.t.Helper()
	code, out, errs := r.run("export")
	path = filepath.Join(r.t.TempDir(), "fleet.yaml")
	err := os.WriteFile(path, []byte(out), 0o600)
	require.True(r.t, err == nil && code == 0, "export: exit %d: %s, %v", code, errs, err)
	return path, errs
}

// Applying an export to another etcd copies the operators' settings, and names the omitted ones.
func TestExport_CopiesFleet(t *testing.T) {
	t.Parallel()
	old, fresh := newRig(t), newRig(t)
	for _, args := range [][]string{
		{"add", "--no-verify", "prefill", "10.0.0.1:8100", "10.0.0.2:8100"},
		{"add", "--no-verify", "decode", "10.0.0.3:8200", "--connector", "nixl"},
		{"remove", "decode", "10.0.0.3:8200", "--reason", "new disks"},
		{"cordon", "prefill", "10.0.0.2:8100"},
		{"limit", "set", "team-a", "--rpm", "5"},
		{"add", "--wait=10m", "decode", "127.0.0.1:1"},
		{"drain", "prefill", "10.0.0.1:8100", "--for", "10m", "--yes"},
	} {
		old.ok(args...)
	}
	want := old.raw("/pd/")
	for _, key := range []string{"/pd/pending/decode/127.0.0.1:1", "/pd/override/prefill/10.0.0.1:8100"} {
		require.NotEqual(t, "", want[key], "%s is not in %v", key, want)
		delete(want, key)
	}
	old.put("/pd/prefill/no-port", "")
	old.put("/pd/prefill/10.0.0.8:8100", "{broken")
	old.put("/pd/load/x", "not the operator's")
	old.put("/pd/override/prefill/10.0.0.4:8100", `{"v":1,"state":"drain","role":"decode"}`)
	old.put("/pd/override/prefill/10.0.0.5:8100", `{"v":1,"state":"drain","role":"decode","auto":true}`)
	old.put("/pd/override/prefill/10.0.0.9:8100", `{"v":1,"state":"drain","role":"decode","weight":20}`)
	old.leased("/pd/override/decode/10.0.0.6:8100", `{"v":1,"state":"drain","role":"prefill"}`)
	old.leased("/pd/decode/10.0.0.7:8200", `{"v":1,"id":"X"}`)

	path, notes := old.export()
	assert.NotContains(t, notes, "10.0.0.5:8100")
	require.True(t, testkit.Contains(t, notes, "override/prefill/10.0.0.4:8100: left out: it keeps an engine in one role; set it again: pdctl role decode 10.0.0.4:8100\n", "pdctl role decode 10.0.0.9:8100; pdctl weight prefill 10.0.0.9:8100 20\n", "override/decode/10.0.0.6:8100: left out: it has a time limit\n", "decode/127.0.0.1:1: left out: it waits", "override/prefill/10.0.0.1:8100: left out: it has a time limit", "prefill/no-port: left out: ", "prefill/10.0.0.8:8100: left out: "))
	fresh.ok("apply", "--dry-run", "-f", path)
	require.Len(t, fresh.raw("/"), 0, "the dry run wrote")
	fresh.ok("apply", "-f", path)
	got := fresh.raw("/pd/")
	assert.True(t, maps.Equal(got, want), "copied\n%v, want\n%v", got, want)
	fresh.want(0, "nothing to change\n", "apply", "-f", path)

	// Nothing is read or written if a newer program or another program owns the keys.
	for schema, want := range map[string]string{`{"v":2}`: "newer version", "else": "not ours"} {
		r := newRig(t)
		r.put("/pd/meta/schema", schema)
		for _, args := range [][]string{{"apply", "-f", path}, {"apply", "--dry-run", "-f", path}, {"export"}} {
			assert.Contains(t, r.exits(1, args...).errs, want)
		}
		assert.Equal(t, fmt.Sprintf("map[/pd/meta/schema:%s]", schema), fmt.Sprint(r.raw("/")), "there")
	}
}
