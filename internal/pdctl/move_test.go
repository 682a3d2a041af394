package pdctl_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// raw is what is in etcd below a prefix, by key.
func (r *rig) raw(prefix string) map[string]string {
	r.t.Helper()
	resp, err := r.cli.Get(r.t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if !strings.HasPrefix(key, "/pd/audit/") {
			out[key] = string(kv.Value)
		}
	}
	return out
}

func (r *rig) export() string {
	r.t.Helper()
	code, out, errs := r.run("export")
	if code != 0 || errs != "" {
		r.t.Fatalf("export: exit %d: %s", code, errs)
	}
	path := filepath.Join(r.t.TempDir(), "fleet.jsonl")
	if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// furnish fills an etcd with one of each.
func furnish(t *testing.T, r *rig) {
	t.Helper()
	for _, args := range [][]string{
		{"add", "--no-verify", "prefill", "10.0.0.1:8100", "10.0.0.2:8100"},
		{"add", "--no-verify", "decode", "10.0.0.3:8200", "--connector", "nixl"},
		{"remove", "decode", "10.0.0.3:8200", "--reason", "new disks"},
		{"add", "--wait=10m", "decode", "127.0.0.1:1"},
	} {
		if code, out, errs := r.run(args...); code != 0 {
			t.Fatalf("%v: exit %d: %s%s", args, code, out, errs)
		}
	}
	r.put("/pd/prefill/10.0.0.9:8100", "") // what one etcdctl put leaves
	r.put("/pd/override/prefill/10.0.0.2:8100", `{"v":1,"state":"cordon","of_a_newer_version":[1, 2]}`)
	r.put("/pd/prefill/no-port", "")
	r.put("/pd/prefill/10.0.0.8:8100", "{broken")
	r.put("/pd/load/x", "not ours to carry")
	lease, err := r.cli.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.cli.Put(t.Context(), "/pd/decode/10.0.0.7:8200", `{"v":1,"id":"X"}`, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := r.run("drain", "decode", "10.0.0.7:8200", "--for", "10m"); code != 0 {
		t.Fatal(errs)
	}
}

func TestExportAndImport(t *testing.T) {
	t.Parallel()
	old, fresh := newRig(t), newRig(t)
	furnish(t, old)
	path := old.export()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(string(text), "\n"); !strings.Contains(first, `{"format":"pdmesh-export","v":1,"prefix":"/pd/","revision":`) {
		t.Errorf("first line %s", first)
	}
	// A dry run prints the same and writes nothing.
	code, dry, errs := fresh.run("import", "--dry-run", path)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if got := fresh.raw("/"); len(got) != 0 {
		t.Fatalf("the rehearsal wrote %v", got)
	}
	code, said, errs := fresh.run("import", path)
	if code != 0 || said != strings.ReplaceAll(dry, "would be written", "written") {
		t.Fatalf("exit %d: %s\n%s\nafter the rehearsal\n%s", code, errs, said, dry)
	}
	for _, want := range []string{
		"record prefill/10.0.0.1:8100: written", "record prefill/10.0.0.9:8100: written",
		"override decode/10.0.0.3:8200: written", "pending decode/127.0.0.1:1: written",
		"record decode/10.0.0.7:8200: skipped: held by a lease",
		"record prefill/no-port: skipped: bad address", "record prefill/10.0.0.8:8100: skipped: cannot be used",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	want := old.raw("/pd/")
	for _, key := range []string{"/pd/prefill/no-port", "/pd/prefill/10.0.0.8:8100", "/pd/load/x", "/pd/decode/10.0.0.7:8200"} {
		delete(want, key)
	}
	if got := fresh.raw("/pd/"); !maps.Equal(got, want) {
		t.Errorf("carried\n%v, want\n%v", got, want)
	}
	// The wait and the intent for a time end there when they would have ended here.
	for _, key := range []string{"/pd/pending/decode/127.0.0.1:1", "/pd/override/decode/10.0.0.7:8200"} {
		resp, err := fresh.cli.Get(t.Context(), key)
		if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease == 0 {
			t.Fatalf("%v, %v", resp, err)
		}
		ttl, err := fresh.cli.TimeToLive(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
		if err != nil || ttl.GrantedTTL < 1 || ttl.GrantedTTL > 600 {
			t.Errorf("%s: %+v, %v", key, ttl, err)
		}
	}
	// A second time nothing is written.
	before := revision(t, fresh)
	code, said, errs = fresh.run("import", path, "-o", "json")
	if code != 0 || revision(t, fresh) != before {
		t.Fatalf("exit %d, revision %d, was %d: %s", code, revision(t, fresh), before, errs)
	}
	var results struct{ Results []struct{ Outcome string } }
	if err := json.Unmarshal([]byte(said), &results); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range results.Results {
		count[r.Outcome]++
	}
	if count["same"] != len(want)-1 || count["skipped"] != 3 || len(count) != 2 { // all but the schema key
		t.Errorf("outcomes %v", count)
	}
}

func revision(t *testing.T, r *rig) int64 {
	t.Helper()
	resp, err := r.cli.Get(t.Context(), "/pd/meta/schema")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// What the new etcd has meanwhile counts more than what was exported.
func TestImportLeavesWhatIsThere(t *testing.T) {
	t.Parallel()
	old, fresh := newRig(t), newRig(t)
	for _, args := range [][]string{
		{"add", "--no-verify", "prefill", "10.0.0.1:8100", "10.0.0.2:8100", "10.0.0.3:8100"},
		{"add", "--wait", "decode", "127.0.0.1:1"},
	} {
		if code, _, errs := old.run(args...); code != 0 {
			t.Fatal(errs)
		}
	}
	path := old.export()
	if code, _, errs := fresh.run("remove", "--force", "prefill", "10.0.0.1:8100"); code != 0 {
		t.Fatal(errs)
	}
	lease, err := fresh.cli.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.cli.Put(t.Context(), "/pd/prefill/10.0.0.2:8100", "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	fresh.put("/pd/prefill/10.0.0.3:8100", `{"v":1,"weight":7}`)
	fresh.put("/pd/decode/127.0.0.1:1", "")
	before := fresh.raw("/pd/")
	code, said, errs := fresh.run("import", path)
	if code != 1 || !strings.Contains(errs, "1 of 4 were not imported") {
		t.Errorf("exit %d: %s", code, errs)
	}
	for _, want := range []string{
		"record prefill/10.0.0.1:8100: skipped: the new etcd already has", "record prefill/10.0.0.2:8100: skipped: the new etcd already has",
		"record prefill/10.0.0.3:8100: another value exists", "pdctl get prefill/10.0.0.3:8100",
		"pending decode/127.0.0.1:1: skipped: the new etcd already has",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if after := fresh.raw("/pd/"); !maps.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	const head = `{"format":"pdmesh-export","v":1,"prefix":"/pd/","revision":1,"at":"2026-01-01T00:00:00Z"}` + "\n"
	line := func(s string) string {
		return head + `{"kind":"record","role":"prefill","address":"10.0.0.1:8100","value":""}` + "\n" + s
	}
	r := newRig(t)
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "it is empty"},
		{"not ours", "{\"a\":1}\n", "its first line is not"},
		{"not JSON", "role address\n", "its first line is not"},
		{"newer", `{"format":"pdmesh-export","v":2}` + "\n", "version 2"},
		{"broken line", line(`{"kind":"record",`), "line 3"},
		{"unknown field", line(`{"kind":"record","role":"prefill","address":"10.0.0.1:8100","value":"","password":"x"}`), "password"},
		{"unknown kind", line(`{"kind":"audit","role":"prefill","address":"10.0.0.1:8100","value":"{}"}`), "no kind of key"},
		{"bad role", line(`{"kind":"record","role":"both","address":"10.0.0.1:8100","value":""}`), "unknown role"},
		{"bad address", line(`{"kind":"record","role":"decode","address":"0.0.0.0:8100","value":""}`), "wildcard"},
		{"bad value", line(`{"kind":"record","role":"decode","address":"10.0.0.1:8100","value":"{"}`), "broken JSON"},
		{"bad override", line(`{"kind":"override","role":"decode","address":"10.0.0.1:8100","value":"{\"state\":\"gone\"}"}`), "removed"},
		{"no value", line(`{"kind":"record","role":"decode","address":"10.0.0.1:8100"}`), "no value"},
		{"ttl of a record", line(`{"kind":"record","role":"decode","address":"10.0.0.1:8100","value":"","ttl":5}`), "only pending adds"},
		{"long line", line(strings.Repeat("x", 1<<20)), "after line 2"},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := r.run("import", path)
		if code != 1 || out != "" || !strings.Contains(errs, tc.want) || !strings.Contains(errs, "not an export") {
			t.Errorf("%s: exit %d: %s%s", tc.name, code, out, errs)
		}
	}
	if code, _, errs := r.run("import", filepath.Join(t.TempDir(), "none")); code != 2 || !strings.Contains(errs, "no such file") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if got := r.raw("/"); len(got) != 0 {
		t.Errorf("written: %v", got)
	}
}

// Neither is written where a newer program or another one has its keys, nor is
// read from there.
func TestMoveRefusesAForeignSchema(t *testing.T) {
	t.Parallel()
	old := newRig(t)
	if code, _, errs := old.run("add", "--no-verify", "prefill", "10.0.0.1:8100"); code != 0 {
		t.Fatal(errs)
	}
	path := old.export()
	for schema, want := range map[string]string{`{"v":2}`: "newer version", "else": "not ours"} {
		r := newRig(t)
		r.put("/pd/meta/schema", schema)
		for _, args := range [][]string{{"import", path}, {"import", "--dry-run", path}, {"export"}} {
			code, out, errs := r.run(args...)
			if code != 1 || out != "" || !strings.Contains(errs, want) {
				t.Errorf("%v with schema %s: exit %d: %s%s", args, schema, code, out, errs)
			}
		}
		if got := fmt.Sprint(r.raw("/")); got != fmt.Sprintf("map[/pd/meta/schema:%s]", schema) {
			t.Errorf("there is %s", got)
		}
	}
}
