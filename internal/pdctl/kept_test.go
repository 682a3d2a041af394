package pdctl_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestRestoreAndForget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct {
		args []string
		code int
		want string // in stdout, or in stderr on failure
	}{
		{[]string{"restore"}, 2, "--all"},
		{[]string{"forget", "prefill"}, 2, "name the instances"},
		{[]string{"forget", "--all", "prefill", "10.0.0.1:1"}, 2, "exclude each other"},
		{[]string{"restore", "both", "10.0.0.1:1"}, 2, "prefill"},
		{[]string{"restore", "decode", "10.0.0.1"}, 2, "nothing was done"},
		{[]string{"restore", "--all", "--reason", "go on"}, 0, "0 proxies notified: restore the kept keys"},
		{[]string{"forget", "decode", "10.0.0.1:1"}, 0, "0 proxies notified: forget the kept keys"},
	} {
		code, out, errs := r.run(c.args...)
		assert.True(t, code == c.code && strings.Contains(out+errs, c.want),
			"%v: code %d\n%s%s", c.args, code, out, errs)
	}
	l := members.Layout(t)
	resp, err := r.cli.Get(t.Context(), l.Kept())
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease == 0 || !strings.Contains(string(resp.Kvs[0].Value), `"keys":["decode/10.0.0.1:1"]`) {
		t.Fatalf("%v, %v", resp.Kvs, err)
	}
	log, err := store.New(r.cli, l, "test").Reader.AuditLog(t.Context(), 0)
	if err != nil || len(log) != 2 || log[0].What != "forget" || log[0].Address != "10.0.0.1:1" || log[1].Why != "go on" {
		t.Fatalf("%+v, %v", log, err)
	}
}

// An order that is reported as failed is not written.
func TestRestoreWithoutRightToReadProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	password := r.enableAuth(map[string]clientv3.PermissionType{
		"/pd/audit/": clientv3.PermissionType(clientv3.PermReadWrite), "/pd/meta/": clientv3.PermissionType(clientv3.PermReadWrite),
	})
	for _, verb := range []string{"restore", "forget"} {
		args := []string{verb, "--all", "--etcd-password-file", password, "--etcd-username"}
		assert.Contains(t, r.want(1, "", append(args, "part")...), "list the proxies: ")
		out := r.ok("history", "-o", "json", "--etcd-password-file", password, "--etcd-username", "root")
		assert.NotContains(t, out, verb, "written: %s", out)
	}
}

// Commands about keys that proxies keep of a former etcd change nothing, and name the
// decision that must come first. A new override would replace the whole former one.
func TestKeptByProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const agent, static, other, out = "10.0.0.1:8200", "10.0.0.2:8200", "10.0.0.3:8200", "10.0.0.4:8200"
	r.put("/pd/proxies/p0", well) // keeps nothing, or has an older release
	r.put("/pd/proxies/p1", `{"v":1,"applied":1000000,"address":"10.0.0.1:8000","unverified":{},"notices":["keys of a former etcd"],
		"kept":["override/decode/`+agent+`","override/decode/`+out+`","decode/`+static+`","models/chat","limits/team-a"]}`)
	for _, address := range []string{agent, other} {
		r.put("/pd/decode/"+address, `{"v":1,"state":"ready","models":["m"]}`)
		r.put("/pd/prefill/"+address, `{"v":1,"state":"ready","models":["m"]}`)
	}
	for _, c := range []struct {
		args []string
		key  string // named in the error; "" if the command succeeds
	}{
		{[]string{"weight", "decode", agent, "50"}, agent},
		{[]string{"weight", "decode", agent, "default"}, agent},
		{[]string{"drain", "decode", agent, "--force"}, agent},
		{[]string{"undrain", "decode", agent}, agent},
		{[]string{"cordon", "both", agent}, agent},
		{[]string{"role", "prefill", agent}, agent},
		{[]string{"remove", "decode", agent, "--force"}, agent},
		{[]string{"uncordon", "decode", out}, out},
		{[]string{"allow", "decode", out}, out},
		{[]string{"drain", "decode", static}, static},
		{[]string{"weight", "decode", static, "1"}, static},
		{[]string{"remove", "decode", static}, static},
		{[]string{"weight", "prefill", agent, "50"}, ""},
		{[]string{"weight", "decode", other, "50"}, ""},
		{[]string{"drain", "decode", static, "--force"}, ""},
		{[]string{"remove", "decode", other}, ""},
	} {
		code, text, errs := r.run(c.args...)
		switch want := "pdctl restore decode/" + c.key + " or pdctl forget decode/" + c.key; {
		case c.key == "" && code != 0:
			t.Errorf("%v: exit %d\n%s%s", c.args, code, text, errs)
		case c.key != "" && (code != 1 || !strings.Contains(text, want)):
			t.Errorf("%v: exit %d, want %q\n%s%s", c.args, code, want, text, errs)
		}
	}
	assert.Contains(t, r.exits(1, "model", "rm", "chat").out, "pdctl restore --all or pdctl forget --all")
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.WriteFile(t, path, "intents: {decode/"+agent+": {weight: 60}}\n")
	if code, text, errs := r.run("apply", "-f", path); code != 1 || !strings.Contains(text+errs, "pdctl restore decode/"+agent) {
		t.Errorf("apply: exit %d\n%s%s", code, text, errs)
	}
	for command, want := range map[string]string{"list": "5 keys", "export": "5 keys", "limit list": "1 key", "model ls": "1 key", "model ls -o json": "1 key"} {
		_, _, errs := r.run(strings.Fields(command)...)
		if !strings.Contains(errs, want+" of a former etcd") || !strings.Contains(errs, "pdctl restore --all") {
			t.Errorf("%s: %s", command, errs)
		}
	}
	// Once etcd has a value for the key, commands work as usual.
	r.put("/pd/override/decode/"+agent, `{"v":1,"state":"drain"}`)
	r.want(0, "decode/"+agent+": weight 50\n", "weight", "decode", agent, "50")
}

func TestRemoveByForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	assert.Contains(t, r.exits(1, "remove", "prefill", "10.0.0.1:8100").out, "no such instance")
	for range 2 { // a repeated removal is harmless
		assert.Contains(t, r.ok("remove", "--force", "prefill", "10.0.0.1:8100", "--reason", "orphan"), "forbidden")
	}
	l := members.Layout(t)
	store := store.New(r.cli, l, "test")
	log, err := store.Reader.AuditLog(t.Context(), 0)
	require.True(t, err == nil && len(log) == 1 && log[0].What == "remove" && log[0].Why == "orphan",
		"%+v, %v", log, err)
	code, _, errs := r.run("remove", "--force", "prefill", "10.0.0.1")
	require.Equal(t, 2, code, "code: %s", errs)
}
