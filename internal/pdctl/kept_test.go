package pdctl_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestRestoreAndForget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct {
		args []string
		code int
		want string // in stdout, or in stderr of what fails
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
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%v: code %d\n%s%s", c.args, code, out, errs)
		}
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

func TestRemoveByForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if code, out, errs := r.run("remove", "prefill", "10.0.0.1:8100"); code != 1 || !strings.Contains(out, "no such instance") {
		t.Fatalf("code %d: %s%s", code, out, errs)
	}
	for range 2 { // repeating it does no harm
		if code, out, errs := r.run("remove", "--force", "prefill", "10.0.0.1:8100", "--reason", "orphan"); code != 0 || !strings.Contains(out, "forbidden") {
			t.Fatalf("code %d: %s%s", code, out, errs)
		}
	}
	l := members.Layout(t)
	store := store.New(r.cli, l, "test")
	log, err := store.Reader.AuditLog(t.Context(), 0)
	if err != nil || len(log) != 1 || log[0].What != "remove" || log[0].Why != "orphan" {
		t.Fatalf("%+v, %v", log, err)
	}
	if code, _, errs := r.run("remove", "--force", "prefill", "10.0.0.1"); code != 2 {
		t.Fatalf("code %d: %s", code, errs)
	}
}
