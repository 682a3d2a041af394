package pdctl_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// touched returns the keys that were written or deleted since a revision,
// with their values. Audit entries are returned without values.
func (r *rig) touched(since int64) (out []string) {
	r.t.Helper()
	now := r.now()
	if now == since {
		return nil
	}
	ctx := r.t.Context()
	for resp := range r.cli.Watch(ctx, "/pd/", clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		for _, ev := range resp.Events {
			out = append(out, kept(map[bool]string{true: "delete", false: "put"}[ev.Type == clientv3.EventTypeDelete], string(ev.Kv.Key), string(ev.Kv.Value)))
		}
		if resp.Header.Revision >= now || len(resp.Events) > 0 && resp.Events[len(resp.Events)-1].Kv.ModRevision >= now {
			break
		}
	}
	slices.Sort(out)
	return out
}

func kept(op, key, value string) string {
	if strings.HasPrefix(key, "/pd/audit/") {
		return op + " audit"
	}
	return op + " " + key + " " + value
}

func (r *rig) now() int64 {
	r.t.Helper()
	resp, err := r.cli.Get(r.t.Context(), "/pd/meta/schema")
	require.NoError(r.t, err)
	return resp.Header.Revision
}

func (r *rig) leases() int {
	r.t.Helper()
	resp, err := r.cli.Leases(r.t.Context())
	require.NoError(r.t, err)
	return len(resp.Leases)
}

// A dry run of every writing command prints the changes that the command then writes, and writes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	engine, stopped := startEngine(t, "org/m"), "127.0.0.1:1"
	r.leased("/pd/decode/10.0.0.8:8200", `{"models":["m"],"labels":{"rack":"3"}}`)
	r.leased("/pd/prefill/10.0.0.7:8100", `{"models":["m"],"labels":{"rack":"3"}}`)
	for _, line := range []string{
		"add prefill " + engine, "add decode " + stopped + " --wait=10m", "remove decode " + stopped,
		"drain decode 10.0.0.8:8200 --for 30m --reason disks", "undrain decode 10.0.0.8:8200",
		"cordon prefill 10.0.0.7:8100", "uncordon prefill 10.0.0.7:8100",
		"weight decode --selector rack=3 300", "weight decode 10.0.0.8:8200 default",
		"remove decode --selector rack=3", "allow decode 10.0.0.8:8200",
		"remove prefill 10.0.0.99:1 --force", "restore --all", "forget prefill 10.0.0.7:8100",
	} {
		args := strings.Fields(line)
		before, leases := r.now(), r.leases()
		code, out, errs := r.run(append(args, "--dry-run", "-o", "json")...)
		require.Equal(t, 0, code, "%s: exit\n%s%s", line, out, errs)
		text, plain, _ := r.run(append(args, "--dry-run")...)
		if text != 0 || !strings.Contains(plain, "Dry run: nothing is written.") || !strings.Contains(plain, fmt.Sprintf("\nat revision %d\n", before)) {
			t.Errorf("%s: exit %d\n%s", line, text, plain)
		}
		if now, have := r.now(), r.leases(); now != before || have != leases {
			t.Fatalf("%s: etcd was at revision %d and is at %d; it had %d leases and has %d", line, before, now, leases, have)
		}
		var said struct {
			DryRun []struct {
				Revision int64
				If       []string
				Writes   []struct{ Op, Key, Value string }
			} `json:"dry_run"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &said), "%s\n%s", line, out)
		var would []string
		for _, one := range said.DryRun {
			assert.Equal(t, before, one.Revision, "%s: compared at revision", line)
			for _, w := range one.Writes {
				would = append(would, kept(w.Op, w.Key, w.Value))
			}
		}
		slices.Sort(would)
		r.ok(args...)
		d := cmp.Diff(r.touched(before), would, cmp.Transformer("times", sameTimes))
		assert.Equal(t, "", d, "%s (-written +said)\n%s", line, d)
	}
}

// sameTimes removes the times of writes from values.
func sameTimes(list []string) (out []string) {
	for _, s := range list {
		op, value, ok := strings.Cut(s, " {")
		var m map[string]any
		if !ok || json.Unmarshal([]byte("{"+value), &m) != nil {
			out = append(out, s)
			continue
		}
		for _, name := range []string{"at", "id", "since", "until", "ends", "started_at", "nonce"} {
			delete(m, name)
		}
		text, _ := json.Marshal(m) //nolint:errchkjson // it was JSON
		out = append(out, op+" "+string(text))
	}
	return out
}

func TestSelector(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leased("/pd/decode/10.0.0.8:8200", `{"models":["org/m"],"labels":{"rack":"3","zone":"a"},"state":"ready"}`)
	r.leased("/pd/decode/10.0.0.9:8200", `{"models":["org/n"],"labels":{"rack":"3"},"state":"down"}`)
	r.leased("/pd/prefill/10.0.0.6:8100", `{"models":["org/m"],"labels":{"rack":"4","role":"x"},"kv_role":"kv_both"}`)
	r.leased("/pd/decode/10.0.0.6:8100", `{"models":["org/m"],"labels":{"rack":"4"},"kv_role":"kv_both"}`)
	for line, want := range map[string]string{
		"rack=3":                         "decode/10.0.0.8:8200 decode/10.0.0.9:8200",
		"rack=3 zone=a":                  "decode/10.0.0.8:8200",
		"state=down":                     "decode/10.0.0.9:8200",
		"role=prefill":                   "prefill/10.0.0.6:8100",
		"label:role=x":                   "prefill/10.0.0.6:8100",
		"model=m role=decode":            "decode/10.0.0.6:8100 decode/10.0.0.8:8200",
		"model=org/n":                    "decode/10.0.0.9:8200",
		"rack=5":                         "",
		"rack=3,zone=a":                  "decode/10.0.0.8:8200",
		"rack==3,zone!=a":                "decode/10.0.0.9:8200",
		"rack!=3":                        "prefill/10.0.0.6:8100 decode/10.0.0.6:8100",
		"rack+in+(3,+5)":                 "decode/10.0.0.8:8200 decode/10.0.0.9:8200",
		"rack+notin+(3,4)":               "",
		"zone":                           "decode/10.0.0.8:8200",
		"!zone,role=decode":              "decode/10.0.0.6:8100 decode/10.0.0.9:8200",
		"state+in+(ready,down),model!=m": "decode/10.0.0.9:8200",
	} {
		args := []string{"list", "-o", "json"}
		for term := range strings.FieldsSeq(line) {
			term = strings.ReplaceAll(term, "+", " ")
			args = append(args, "-l", term)
		}
		_, out, errs := r.run(args...)
		var got struct {
			Instances []struct{ Role, Address string }
		}
		require.NoError(t, json.Unmarshal([]byte(out), &got), "%s\n%s%s", line, out, errs)
		var list []string
		for _, in := range got.Instances {
			list = append(list, in.Role+"/"+in.Address)
		}
		assert.Equal(t, want, strings.Join(list, " "), line)
	}
	r.completes("rack=3 rack=4", "list", "--selector", "rack=")
	testkit.Eventually(t, patience, func() error { // retried as in completes
		_, keys, _ := r.run("__complete", "drain", "decode", "-l", "")
		if !strings.Contains(keys, "rack=\n") || !strings.Contains(keys, "label:role=\n") || !strings.Contains(keys, "state=\n") {
			return errors.New(keys)
		}
		return nil
	})
	assert.Contains(t, r.want(1, "", "list", "--selector", "rack=5"), "no instance matches --selector rack=5")
	for term, hint := range map[string]string{"rack=3,4": "rack in (3,4)", "rack!=3,4": "rack notin (3,4)"} {
		errs := r.want(1, "", "list", "--selector", term)
		assert.Contains(t, errs, "no instance has a label 4: for several values write "+hint, "%q", errs)
	}
	errs := r.want(1, "both/10.0.0.8:8200: failed: not done: 10.0.0.8:8200 is registered as decode only: name that role instead of both, or register the engine in both roles\n", "drain", "both", "10.0.0.8:8200")
	assert.Contains(t, errs, "1 of 1 failed", "%q", errs)
	r.want(1, "prefill/10.0.0.8:8200: failed: not done: 10.0.0.8:8200 is registered as decode only: name that role instead of both, or register the engine in both roles\n"+
		"decode/10.0.0.8:8200: failed: not done: 10.0.0.8:8200 is registered as decode only: name that role instead of both, or register the engine in both roles\n", "remove", "both", "10.0.0.8:8200")
	got := r.listings().Instances
	assert.True(t, len(got) == 4 && got[3].Intent == "", "%+v", got)
	r.want(0, "both/10.0.0.6:8100: drained\n", "drain", "both", "--selector", "rack=4")
	r.want(1, "", "cordon", "both", "--selector", "rack=3")
	r.want(0, "decode/10.0.0.8:8200: cordoned\ndecode/10.0.0.9:8200: cordoned\n", "cordon", "decode", "--selector", "rack=3")
	r.want(0, "decode/10.0.0.8:8200: uncordoned; proxies use it again as it registers\n", "uncordon", "decode", "--selector", "state=cordon", "--selector", "zone=a")
	r.want(0, removed("prefill", "10.0.0.6:8100")+removed("decode", "10.0.0.6:8100"), "remove", "both", "--selector", "state=drain")
	r.want(0, "decode/10.0.0.8:8200: weight 300 for 1m30s\n", "weight", "decode", "10.0.0.8:8200", "300", "--for", "90")
	errs = r.want(1, "", "drain", "prefill", "--selector", "rack=9")
	assert.Contains(t, errs, "no prefill instance matches --selector rack=9", "%q", errs)
	_, wide, _ := r.run("list", "-o", "wide", "-l", "zone=a")
	require.True(t, testkit.Contains(t, wide, "LABELS", "rack=3,zone=a", "VERSION", "LEASE", "WEIGHT"))
	_, forms, _ := r.run("__complete", "list", "-o", "")
	assert.Equal(t, "table\nwide\njson\nyaml\nname\n:4\n", forms)
}

// YAML output has the same contents as JSON, in the same order.
func TestYAML(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.8:8200", `{"models":["null","1e3","yes","a: b"],"labels":{"x":"\u00e9\u2028"}}`)
	r.put("/pd/override/decode/10.0.0.8:8200", `{"v":1,"state":"drain","reason":"- no\nlist"}`)
	applied := r.revision("/pd/override/decode/10.0.0.8:8200")
	r.put("/pd/proxies/p1", strings.Replace(well, "1000000", strconv.FormatInt(applied, 10), 1))
	for _, line := range []string{"list", "get decode/10.0.0.8:8200", "status", "history", "doctor --agents=false", "wait --revision 1", "mooncake segments", "undrain decode 10.0.0.8:8200 --dry-run"} {
		args := strings.Fields(line)
		code, asJSON, errs := r.run(append(args, "-o", "json")...)
		again, asYAML, _ := r.run(append(args, "-o", "yaml")...)
		var a, b any
		require.NoError(t, json.Unmarshal([]byte(asJSON), &a), "%s: exit %d\n%s%s", line, code, asJSON, errs)
		require.NoError(t, yaml.Unmarshal([]byte(asYAML), &b), "%s: exit %d\n%s", line, again, asYAML)
		text, err := json.Marshal(b)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &b))
		assert.True(t, !strings.HasPrefix(asYAML, "{") && !strings.Contains(asYAML, ": {\""),
			"%s is not written over lines\n%s", line, asYAML)
		volatile := cmp.FilterPath(func(p cmp.Path) bool {
			last := p.Last().String()
			return slices.ContainsFunc([]string{"digest_age", "at", "db_size", "key", "value"}, func(name string) bool { return last == `["`+name+`"]` })
		}, cmp.Ignore())
		d := cmp.Diff(a, b, volatile)
		assert.True(t, d == "" && code == again, "%s: exit %d and %d (-json +yaml)\n%s", line, code, again, d)
	}
}
