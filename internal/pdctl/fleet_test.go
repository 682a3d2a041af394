package pdctl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// operated returns the keys and values that operators own.
func (r *rig) operated() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for _, prefix := range []string{"/pd/prefill/", "/pd/decode/", "/pd/override/", "/pd/limits/", "/pd/models/"} {
		resp, err := r.cli.Get(r.t.Context(), prefix, clientv3.WithPrefix())
		require.NoError(r.t, err)
		for _, kv := range resp.Kvs {
			out[string(kv.Key)] = string(kv.Value)
		}
	}
	return out
}

func (r *rig) ok(args ...string) string {
	r.t.Helper()
	code, out, errs := r.run(args...)
	if code != 0 {
		r.t.Fatalf("pdctl %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// revert restores static instances, intents and documents byte for byte, and changes nothing else.
func TestRevert(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const a, b, c, d = "10.0.0.1:8200", "10.0.0.2:8200", "10.0.0.3:8200", "10.0.0.4:8200"
	for _, at := range []string{a, b, c} {
		r.ok("add", "decode/"+at, "--no-verify", "--reason", "é \"<&>\"")
	}
	r.leased("/pd/decode/10.0.0.9:8200", `{"models":["m"]}`)
	r.ok("cordon", "decode/"+b, "--reason", "kept")
	r.ok("weight", "decode/"+c, "300")
	documents := store.New(r.cli, members.Layout(t), "ann").Documents
	_, err := documents.Put(t.Context(), instance.Key{Role: "limits", Address: "team-a"}, []byte(`{ "rate": 1}`),
		store.DocumentOptions{})
	require.NoError(t, err)
	then, at := r.operated(), fmt.Sprint(r.now())
	r.want(0, "no differences\n", "diff", "--from", at)

	r.ok("remove", "decode/"+a)
	r.ok("uncordon", "decode/"+b)
	r.ok("weight", "decode/"+b, "50")
	r.ok("drain", "decode/"+c)
	r.ok("add", "decode/"+d, "--no-verify")
	r.ok("remove", "decode/10.0.0.9:8200")
	r.ok("cordon", "prefill/"+d, "--force", "--for", "1h")
	_, err = documents.Delete(t.Context(), instance.Key{Role: "limits", Address: "team-a"}, "")
	require.NoError(t, err)
	r.ok("drain", "decode/"+d)
	r.ok("undrain", "decode/"+d) // nothing remains of it
	out := r.ok("diff", "--from", at)
	require.True(t, testkit.Contains(t, out,
		"- decode/"+a+"\n    - ", "+ override/decode/"+a+"\n    + {", "~ override/decode/"+b+"\n    - ", "+ decode/"+d+"\n",
		"- limits/team-a\n    - { \"rate\": 1}\n", "+ override/decode/10.0.0.9:8200\n", "+ override/prefill/"+d, "(for a time)",
	))
	assert.NotContains(t, out, "decode/"+d+"\n    - ")
	before := r.operated()
	assert.Contains(t, r.ok("revert", at, "--dry-run"), "Dry run: nothing is written.")
	assert.Empty(t, cmp.Diff(before, r.operated()))
	last := fmt.Sprint(r.now())
	assert.Contains(t, r.ok("revert", at, "--reason", "back"), "; keys: 8\n")
	delete(then, "/pd/decode/10.0.0.9:8200") // its agent registers it again
	assert.Empty(t, cmp.Diff(then, r.operated()))
	r.want(0, "no differences\n", "diff", "--from", at)
	r.want(0, "nothing to change\n", "revert", at)
	out = r.ok("history", "decode/"+a)
	assert.True(t, strings.Count(out, "revert") == 1 && strings.Count(out, "back") == 1, out)
	assert.Contains(t, r.exits(1, "revert", last).errs,
		"override/prefill/"+d+": cannot be reconstructed: its former value had a time limit; nothing was written")
}

// Later changes of other instances are kept.
func TestRevertOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	r.put("/pd/decode/10.0.0.2:8200", `{"models":["m"]}`)
	const key = "/pd/override/decode/10.0.0.1:8200"
	var changes, values []string
	for _, args := range [][]string{{"weight", "decode/10.0.0.1:8200", "20"}, {"drain", "decode/10.0.0.1:8200"}, {"cordon", "decode/10.0.0.2:8200"}} {
		r.ok(args...)
		changes, values = append(changes, fmt.Sprint(r.now())), append(values, r.operated()[key])
	}
	before := r.operated()
	testkit.Contains(t, r.ok("revert", "--only", changes[1]), "~ override/decode/10.0.0.1:8200\n", "; keys: 1\n")
	before[key] = values[0]
	assert.Empty(t, cmp.Diff(before, r.operated()))
}

// A revert never overwrites a change of another operator: the error names the key.
func TestRevertConflicts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	r.put("/pd/decode/10.0.0.2:8200", `{"models":["m"]}`)
	from := r.now()
	r.ok("drain", "decode/10.0.0.1:8200")
	to := fmt.Sprint(r.now())
	r.ok("cordon", "decode/10.0.0.2:8200")
	r.ok("cordon", "decode/10.0.0.1:8200")
	at := fmt.Sprint(from)
	now := r.operated()
	if errs := r.want(1, "", "revert", at, "--to", to); !strings.Contains(errs, "override/decode/10.0.0.1:8200: changed by another program, at revision ") || !strings.Contains(errs, "nothing was written") {
		t.Error(errs)
	}
	r.put("/pd/override/decode/10.0.0.2:8200", `{"v":1,"state":"drain"}`) // without an audit entry
	now["/pd/override/decode/10.0.0.2:8200"] = `{"v":1,"state":"drain"}`
	assert.Contains(t, r.want(1, "", "revert", at), "override/decode/10.0.0.2:8200: changed by another program")
	assert.Empty(t, cmp.Diff(now, r.operated()))
	// A change between the read and the write.
	s := store.New(r.cli, members.Layout(t), "ann")
	fleet, err := s.Edits.Read(t.Context())
	require.NoError(t, err)
	k := instance.Key{Role: instance.Decode, Address: "10.0.0.1:8200"}
	if _, err := s.Intents.Lift(t.Context(), k, instance.Cordon, ""); err != nil {
		t.Fatal(err)
	}
	values := map[string]*string{"override/decode/10.0.0.1:8200": nil, "override/decode/10.0.0.2:8200": nil}
	if _, err := s.Edits.Write(t.Context(), fleet, values, "revert", ""); err == nil || err.Error() != "override/decode/10.0.0.1:8200: changed by another program" {
		t.Errorf("%v", err)
	}
	assert.NotEqual(t, "", r.operated()["/pd/override/decode/10.0.0.2:8200"], "a part of the transaction was written")
	// Audit entries of an older release have no values.
	r.put("/pd/audit/0", `{"v":1,"who":"old","what":"drain","role":"decode","address":"10.0.0.1:8200"}`)
	assert.Contains(t, r.want(1, "", "revert", at), "(drain of decode/10.0.0.1:8200 by old) lacks the values")
	// Too many changes.
	since := fmt.Sprint(r.now())
	for range 2 {
		values = map[string]*string{}
		fleet, err = s.Edits.Read(t.Context())
		require.NoError(t, err)
		for i := range 60 {
			value := `{"v":1,"state":"drain"}`
			values[fmt.Sprintf("override/prefill/10.0.%d.%d:8100", len(fleet.Keys()), i)] = &value
		}
		if _, err := s.Edits.Write(t.Context(), fleet, values, "apply", ""); err != nil {
			t.Fatal(err)
		}
	}
	assert.Contains(t, r.want(1, "", "revert", since), "120 keys would be restored, the limit is 100")
}

// Audit entries expire after a month. diff and revert report possible gaps, and revert needs --yes.
func TestRevertBeforeTheAuditLog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	at := fmt.Sprint(r.now())
	env := map[string]string{"PD_ETCD_ENDPOINTS": r.etcd.Endpoint()}
	r.ok("weight", "decode/10.0.0.1:8200", "20")
	if _, err := r.cli.Delete(t.Context(), "/pd/audit/", clientv3.WithPrefix()); err != nil { // as its lease does
		t.Fatal(err)
	}
	for _, want := range []string{"the audit log is empty; it keeps 30 days", "the audit log begins at revision "} {
		errs := r.want(0, "no differences\n", "diff", "--from", at)
		assert.Contains(t, errs, "warning: "+want, "%q is not in %q", want, errs)
		errs = r.want(0, "nothing to change\n", "revert", at)
		assert.Contains(t, errs, "warning: "+want, "%q is not in %q", want, errs)
		if code, out, errs := r.runEnv(env, "revert", at); code != 2 || out != "" || !strings.Contains(errs, want) || !strings.Contains(errs, "nothing was done. Repeat the command with --yes") {
			t.Errorf("exit %d: %s%s", code, out, errs)
		}
		r.ok("weight", "decode/10.0.0.1:8200", "30")
		r.ok("weight", "decode/10.0.0.1:8200", "20")
	}
	for _, args := range [][]string{{"diff", "--from", fmt.Sprint(r.now() - 2)}, {"revert", "--only", fmt.Sprint(r.now() - 1), "--dry-run"}} {
		code, _, errs := r.runEnv(env, args...)
		assert.True(t, code == 0 && errs == "", "%v: exit %d: %s", args, code, errs)
	}
}

// Values of more than 16 KiB are not recorded, so such changes are not reverted.
func TestRevertOfLargeValues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	documents := store.New(r.cli, members.Layout(t), "ann").Documents
	r.put("/pd/meta/x", "")
	at := fmt.Sprint(r.now())
	for _, fill := range []string{"a", "b"} {
		value := `{"x":"` + strings.Repeat(fill, 10<<10) + `"}`
		_, err := documents.Put(t.Context(), instance.Key{Role: "models", Address: "m"}, []byte(value),
			store.DocumentOptions{})
		require.NoError(t, err)
	}
	assert.Contains(t, r.want(1, "", "revert", at), "set of models/m by ann) lacks the values")
}

// A file with several YAML documents is refused: --prune would delete the keys that only the later ones have.
func TestApply_SeveralDocumentsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ok("add", "decode/10.0.0.1:8200", "decode/10.0.0.2:8200", "--no-verify")
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.WriteFile(t, path, "---\nstatics: {decode/10.0.0.1:8200: {}}\n---\nstatics: {decode/10.0.0.2:8200: {}}\n")
	assert.Contains(t, r.want(2, "", "apply", "-f", path, "--prune"), "more than one YAML document")
	assert.NotEqual(t, "", r.operated()["/pd/decode/10.0.0.2:8200"], "an instance of the second document is deleted")
}

// A revision that does not exist yet is an error that names etcd's current one.
func TestRevisions_Missing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ok("add", "decode/10.0.0.1:8200", "--no-verify")
	want := fmt.Sprintf("there is no revision 999999 yet: etcd is at %d\n", r.now())
	for _, args := range [][]string{{"diff", "--from", "999999"}, {"diff", "--from", "1", "--to", "999999"}, {"revert", "999999"}, {"revert", "--only", "999999"}, {"wait", "--revision", "999999"}} {
		errs := r.want(1, "", args...)
		assert.True(t, strings.HasSuffix(errs, want), "%v: %q", args, errs)
	}
}

// export includes records without JSON and omits those that proxies reject; apply replaces the latter.
func TestExport_UnusualRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const empty, bare, rejected = "decode/10.0.0.1:8200", "decode/10.0.0.2:8200", "decode/10.0.0.3:8200"
	r.put("/pd/"+empty, "")
	r.put("/pd/"+bare, "https://10.0.0.2:8200")
	r.put("/pd/"+rejected, "null")
	_, out, errs := r.run("export")
	if !strings.Contains(out, empty+":\n") || !strings.Contains(out, bare+":\n") || !strings.Contains(out, "scheme: https\n") || strings.Contains(out, rejected) {
		t.Error(out)
	}
	want := rejected + `: left out: the value must be empty, host:port, http://host:port or a JSON object, not the text "null"` + "\n"
	assert.Equal(t, want, errs, "%q, want %q", errs, want)
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.WriteFile(t, path, "statics: {"+empty+": , "+rejected+": }")
	out = r.ok("apply", "-f", path)
	assert.False(t, !strings.Contains(out, "+ "+rejected+"\n") && !strings.Contains(out, "~ "+rejected+"\n"), out)
	got := r.operated()["/pd/"+rejected]
	assert.True(t, strings.HasPrefix(got, `{"v":1,`), got)
}

// A weight in a file does not end an engine's role change; a state does.
func TestApplyKeepsRoles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const x, y, override = "10.0.0.1:8100", "10.0.0.2:8100", "/pd/override/prefill/" + "10.0.0.1:8100"
	for _, address := range []string{x, y} {
		r.put("/pd/prefill/"+address, `{"models":["m"]}`)
		r.put("/pd/decode/"+address, `{"models":["m"]}`)
	}
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.WriteFile(t, path, "intents: {prefill/"+x+": {weight: 50}}")
	_, err := store.New(r.cli, members.Layout(t), "ann").Intents.SetRole(t.Context(), x, instance.Decode,
		store.IntentOptions{Reason: "night", Auto: true})
	require.NoError(t, err)
	role := r.operated()[override]
	const stays = "override/prefill/" + x + ": keeps an engine in one role, which stays; the file sets its weight\n"
	code, out, errs := r.run("apply", "-f", path)
	assert.True(t, code == 0 && strings.Contains(out, "; keys: 1\n") && errs == stays, "exit %d: %s%s", code, out, errs)
	weighed := strings.Replace(role, `"state":"drain",`, `"state":"drain","weight":50,`, 1)
	assert.Equal(t, weighed, r.operated()[override])
	r.want(0, "nothing to change\n", "apply", "-f", path, "--prune")
	r.ok("role", "both", x)
	r.want(0, "nothing to change\n", "apply", "-f", path)

	r.ok("weight", "prefill/"+x, "default")
	r.ok("role", "decode", x, "--for", "1h")
	errs = r.want(0, "nothing to change\n", "apply", "-f", path)
	assert.Equal(t, "override/prefill/"+x+": keeps an engine in one role for a time, not changed\n", errs, "%q", errs)
	testkit.WriteFile(t, path, "intents: {prefill/"+x+": {state: cordon, weight: 50}}")
	r.ok("apply", "-f", path)
	got := r.operated()[override]
	assert.True(t, strings.HasPrefix(got, `{"v":1,"state":"cordon","weight":50,"by":`), got)
}

func TestApply(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leased("/pd/decode/10.0.0.9:8200", `{"models":["m"]}`)
	r.put("/pd/prefill/10.0.0.8:8100", `{"models":["m"],"source":"flags","proxies":["p1"]}`)
	r.ok("add", "decode/10.0.0.1:8200", "--no-verify")
	r.ok("cordon", "decode/10.0.0.9:8200")
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	file := func(text string) {
		t.Helper()
		testkit.WriteFile(t, path, text)
	}
	file(`statics:
  decode/10.0.0.2:8200: {connector: nixl, models: [m], labels: {rack: "3"}}
  decode/10.0.0.9:8200: {}
intents:
  decode/10.0.0.2:8200: {weight: 50}
limits:
  team-a: {rpm: 600, input_tpm: 123456789012}
`)
	out := r.ok("apply", "-f", path, "--prune", "--reason", "rack 3")
	require.True(t, testkit.Contains(t, out, "- decode/10.0.0.1:8200\n", "+ decode/10.0.0.2:8200\n", "- override/decode/10.0.0.9:8200\n", "+ override/decode/10.0.0.2:8200\n", `+ {"v":1,"rpm":600,"input_tpm":123456789012}`, "; keys: 5\n"))
	keys, revision := r.operated(), r.now()
	assert.True(t, keys["/pd/decode/10.0.0.9:8200"] != "" && keys["/pd/prefill/10.0.0.8:8100"] != "",
		"apply deletes what it does not own: %v", keys)
	exported := r.ok("export")
	for _, args := range [][]string{{"-f", path, "--prune"}, {"-f", path}} {
		r.want(0, "nothing to change\n", append([]string{"apply"}, args...)...)
	}
	file("limits: {}")
	assert.Contains(t, r.want(0, "nothing to change\n", "apply", "-f", path), "--prune deletes them): limits/team-a\n")
	file(exported)
	r.want(0, "nothing to change\n", "apply", "-f", path, "--prune")
	assert.Equal(t, revision, r.now(), "revision after it was applied again")
	r.ok("revert", fmt.Sprint(revision-1))
	got := r.operated()
	assert.True(t, got["/pd/decode/10.0.0.1:8200"] != "" && got["/pd/decode/10.0.0.2:8200"] == "", "%v", got)
	for text, want := range map[string]string{
		"static: {}": "unknown section",
		"statics: {decode/10.0.0.1:8200: {conector: x}}":                `unknown field "conector"; fields: v, id, role,`,
		"statics: {decode/10.0.0.1:8200: {Connector: nixl}}":            `unknown field "Connector"; fields: v, id, role,`,
		"models: {chat: {targets: [{model: m, Weight: 3, weight: 5}]}}": `unknown field "Weight"; fields: v, targets (model`,
		"statics: {decode/10.0.0.1:8200: {kv_events: {a: {Topic: x}}}}": `unknown field "Topic"; fields: v, id, role,`,
		"statics: {decode/10.0.0.1:8200: {connector: x}}":               `unknown connector "x": known are plain, nixl`,
		"statics: {decode/10.0.0.1:8200: {weight: 10001}}":              "weight: must be between 0 and 10000",
		"statics: {10.0.0.1:8200: {}}":                                  "unknown role",
		"intents: {decode/10.0.0.1:8200: {state: asleep}}":              "use drain, cordon or removed",
		"intents: {decode/10.0.0.1:8200: {weight: 10001}}":              "weight: must be between 0 and 10000",
		"intents: {decode/10.0.0.1:8200: {}}":                           "neither a state nor a weight",
		"models: {chat: {targets: []}}":                                 "1 to 16 targets",
		"models: {chat: {v: 1, targets: [{model: m, share: 3}]}}":       `unknown field "share"; fields: v, targets (model, selector, weight), sticky`,
		"models: {chat: {targets: [{model: m, weight: x}]}}":            "models: chat: targets.weight: string in place of a whole number; fields: v, targets (",
		"models: {chat: {targets: {model: m}}}":                         "targets: object in place of a list",
		"statics: {decode/10.0.0.1:8200: {labels: {zone: 1}}}":          "statics: decode/10.0.0.1:8200: labels: number in place of a string",
		"statics: {decode/10.0.0.1:8200: {labels: {1: a}}}":             "decode/10.0.0.1:8200: names of fields must be strings: put numbers in quotes",
		"statics: {decode/10.0.0.1:8200: {ports: 3}}":                   "ports: number in place of a map",
		"statics: {decode/10.0.0.1:8200: 3}":                            "must be empty, host:port,",
		"statics: {decode/10.0.0.1:8200: {}, decode/10.0.0.1:8200: {}}": "already defined",
		"limits: {a: 3}": "limits: a: the value: number in place of a map",
		"x: 1":           `unknown section "x"`,
		"null: {}":       "line 1: a name is missing: write null and ~ in quotes",
		"statics: {decode/10.0.0.1:8200: {}, null: {}}":                         "line 1: a name is missing",
		"intents: &x {~: {rpm: 1}}\nlimits: *x":                                 "line 1: a name is missing",
		"intents:\n  decode/10.0.0.1:8200: {state: drain}\n  ~: {state: drain}": "line 3: a name is missing",
		"models: {chat: {targets: [{model: m}], null: x}}":                      "names of fields must be strings",
		`limits: {"": {rpm: 1}}`:                                                "1 to 64 visible ASCII characters",
		"statics: 1":                                                            "statics: must be a map",
		"limits: [a]":                                                           "limits: must be a map",
		"limits: {team-b: {v: 1, requests_per_minute: 600}}":                    `team-b: unknown field "requests_per_minute"; fields: v, rpm, input_tpm`,
		"limits: {team-b: {v: 2, rpm: 600}}":                                    "version 2",
		"limits: {team-b: {}}":                                                  "none is set; set rpm,",
		"limits: {team-b: {rpm: 0, concurrent: 5}}":                             "rpm: 0 and null are no limit",
		"limits: {team-b: {rpm: , concurrent: 5}}":                              "rpm: 0 and null are no limit",
		"limits: {team-b: {rpm: -1}}":                                           "rpm: -1 is not between 1",
		"limits: {a/b: {rpm: 1}}":                                               "without a slash",
		"[]":                                                                    "must be a map of sections",
	} {
		file(text)
		errs := r.want(2, "", "apply", "-f", path, "--dry-run")
		assert.Contains(t, errs, want, "%s: %q is not in %s", text, want, errs)
	}
	file("models: {m: {targets: [{model: other}]}}")
	errs := r.want(1, "", "apply", "-f", path)
	assert.Contains(t, errs, "models: m: prefill/10.0.0.8:8100 serves a model with the name m", errs)
	// The example in the help can be pasted.
	_, help, _ := strings.Cut(r.ok("apply", "--help"), "\n\n")
	example, _, _ := strings.Cut(help, "\n\n")
	file(example)
	out = r.ok("apply", "-f", path)
	assert.Contains(t, out, "; keys: 4\n", "%s\n%s", example, out)
	out = r.ok("limit", "list")
	assert.True(t, strings.Contains(out, "team-a  600") && !strings.Contains(out, "invalid"), out)
}

// A change of more than 100 keys that was interrupted is completed by repeating the command.
func TestApplyInParts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write := func(decode, prefill string) {
		t.Helper()
		var file strings.Builder
		file.WriteString("intents:\n")
		for i := range store.MaxEdits {
			fmt.Fprintf(&file, "  decode/10.0.0.%d:8200: {state: drain, reason: %q}\n  prefill/10.0.0.%[1]d:8100: {state: drain, reason: %[3]q}\n", i+1, decode, prefill)
		}
		require.NoError(t, os.WriteFile(path, []byte(file.String()), 0o600))
	}
	large := strings.Repeat("x", 16200) // etcd refuses 100 of these in one request
	write(large, "disks")
	assert.Contains(t, r.ok("apply", "-f", path), "; keys: 200\n")
	write("disks", "racks")
	password := r.enableAuth(map[string]clientv3.PermissionType{
		"/pd/": clientv3.PermissionType(clientv3.PermRead), "/pd/override/decode/": clientv3.PermissionType(clientv3.PermReadWrite),
		"/pd/audit/": clientv3.PermissionType(clientv3.PermReadWrite), "/pd/meta/": clientv3.PermissionType(clientv3.PermReadWrite),
	})
	args := []string{"apply", "-f", path, "--etcd-password-file", password, "--etcd-username"}
	if errs := r.want(1, "", append(args, "part")...); !strings.Contains(errs, "100 of 200 changes were written; repeat the command to write the others") {
		t.Errorf("%.500s", errs)
	}
	assert.Contains(t, r.ok(append(args, "root")...), "; keys: 100\n")
}
