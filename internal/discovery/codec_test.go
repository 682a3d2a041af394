package discovery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
)

type badValue struct{ name, value, reason string }

func badValues() []badValue {
	return []badValue{
		{"broken JSON", `{"v":1,"models":[`, "broken JSON"},
		{"JSON and more", `{"v":1} {"v":1}`, "broken JSON"},
		{"one MiB", `{"id":"` + strings.Repeat("x", 1<<20) + `"}`, "the limit is 16384"},
		{"one byte too many", strings.Repeat(" ", 16<<10) + "x", "the limit is 16384"},
		{"binary", "\x00\x01\xfe\xff", "binary"},
		{"plain text", "hello \x1b[0m there", `hello \u001b[0m there`},
		{"an array", `["10.0.0.1:8100"]`, "JSON object"},
		{"null", `null`, "JSON object"},
		{"a number", `17`, "JSON object"},
		{"a string", `"10.0.0.1:8100"`, "JSON object"},
		{"wrong type", `{"models":"m"}`, `"models"`},
		{"a cause that is no text", `{"cause":1}`, `"cause"`},
		{"wrong type inside", `{"ports":{"a":"b"}}`, `"ports`},
		{"negative weight", `{"weight":-1}`, "weight"},
		{"other role", `{"role":"both"}`, "role"},
		{"other port", `{"address":"10.0.0.1:1"}`, "port"},
		{"address without port", `{"address":"10.0.0.1"}`, "address"},
		{"wildcard address", `{"address":"0.0.0.0:8100"}`, "wildcard"},
		{"unknown state", `{"state":"Ready"}`, "state"},
		{"unknown scheme", `{"scheme":"ftp"}`, "scheme"},
		{"empty model", `{"models":["m",""]}`, "models[1]"},
		{"negative size", `{"tp_size":-2}`, "tp_size"},
		{"impossible port", `{"ports":{"side_channel":[70000]}}`, "70000"},
		{"negative version", `{"v":-1}`, `"v"`},
		{"bad time", `{"started_at":"yesterday"}`, "time"},
		{"another address", "10.9.9.9:8100", "10.9.9.9:8100"},
		{"URL with a path", "http://10.0.0.1:8100/v1", "URL"},
		{"URL with a password", "http://a:b@10.0.0.1:8100", "URL"},
		{"URL of another scheme", "ftp://10.0.0.1:8100", "URL"},
	}
}

func TestDecodeRecordRejects(t *testing.T) {
	t.Parallel()
	for _, c := range badValues() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rec, _, err := discovery.DecodeRecord(prefill("10.0.0.1:8100"), []byte(c.value))
			var rejected *discovery.RejectedError
			if !errors.As(err, &rejected) {
				t.Fatalf("error %v of type %T, record %+v", err, err, rec)
			}
			if !strings.Contains(rejected.Reason, c.reason) {
				t.Errorf("reason %q does not say %q", rejected.Reason, c.reason)
			}
			if strings.ContainsAny(rejected.Reason, "\x1b\x00\n") || len(rejected.Reason) > 500 {
				t.Errorf("reason is not fit to print: %q", rejected.Reason)
			}
		})
	}
}

func TestDecodeRecordAccepts(t *testing.T) {
	t.Parallel()
	k := prefill("10.0.0.1:8100")
	base := instance.Record{V: 1, Role: instance.Prefill, Address: k.Address, Scheme: "http", State: instance.Ready}
	with := func(change func(*instance.Record)) instance.Record {
		r := base
		change(&r)
		return r
	}
	weight := 0
	for _, c := range []struct {
		name, value string
		bare        bool
		want        instance.Record
	}{
		{"empty", "", true, base},
		{"blank", " \r\n", true, base},
		{"address", "10.0.0.1:8100\n", true, base},
		{"URL", "http://10.0.0.1:8100/", true, base},
		{"https URL", "https://10.0.0.1:8100", true, with(func(r *instance.Record) { r.Scheme = "https" })},
		{"empty object", "{}", false, base},
		{"unknown fields", `{"future":{"a":[1]},"v":1}`, false, base},
		{"newer version", `{"v":2,"models":["m"]}`, false, with(func(r *instance.Record) { r.V, r.Models = 2, []string{"m"} })},
		{"same port behind a NAT", `{"address":"GPU-7.example:8100"}`, false, with(func(r *instance.Record) { r.Address = "gpu-7.example:8100" })},
		{"weight zero", `{"weight":0}`, false, with(func(r *instance.Record) { r.Weight = &weight })},
		{"state", `{"state":"down"}`, false, with(func(r *instance.Record) { r.State = instance.Down })},
		{"down because it is slow", `{"state":"down","cause":"slow"}`, false, with(func(r *instance.Record) { r.State, r.Cause = instance.Down, instance.CauseSlow })},
		{"a cause of a newer version", `{"state":"down","cause":"frozen"}`, false, with(func(r *instance.Record) { r.State, r.Cause = instance.Down, "frozen" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rec, bare, err := discovery.DecodeRecord(k, []byte(c.value))
			if err != nil {
				t.Fatal(err)
			}
			if bare != c.bare {
				t.Errorf("bare is %t", bare)
			}
			if diff := cmp.Diff(c.want, rec); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEncodeRecord(t *testing.T) {
	t.Parallel()
	k := decode("[2001:db8::1]:8200")
	rec := instance.Record{ID: "X", Models: []string{"a<b>&c", "ü"}, Ports: map[string][]int{"side_channel": {5600}}}
	value, err := discovery.EncodeRecord(rec)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(value), `"a<b>&c"`) {
		t.Errorf("value is escaped for HTML: %s", value)
	}
	got, bare, err := discovery.DecodeRecord(k, value)
	if err != nil || bare {
		t.Fatal(bare, err)
	}
	rec.V, rec.Role, rec.Address, rec.Scheme, rec.State = 1, k.Role, k.Address, "http", instance.Ready
	if diff := cmp.Diff(rec, got); diff != "" {
		t.Error(diff)
	}
	if _, err := discovery.EncodeRecord(instance.Record{ID: strings.Repeat("x", 20000)}); !errors.Is(err, discovery.ErrTooLarge) {
		t.Errorf("a large record: %v", err)
	}
	minus := -1
	if _, err := discovery.EncodeRecord(instance.Record{Weight: &minus}); err == nil {
		t.Error("a record that nobody could read was encoded")
	}
}

func TestDecodeOverride(t *testing.T) {
	t.Parallel()
	o, err := discovery.DecodeOverride([]byte(`{"v":1,"state":"cordon","weight":3,"by":"x","more":1}`))
	if err != nil || o.State != instance.Cordon || *o.Weight != 3 {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, bad := range []string{"", "drain", `{"state":"gone"}`, `{"weight":-1}`, `{"state":1}`, "\xff"} {
		if _, err := discovery.DecodeOverride([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestNewLayout(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"/pd", "/pd/"} {
		l, err := discovery.NewLayout(p)
		if err != nil || l.Root() != "/pd/" {
			t.Errorf("%q: %q, %v", p, l.Root(), err)
		}
	}
	for _, p := range []string{"", "/", "//", "pd", "/a//b", "/mooncake", "/mooncake-store/x", "/oplog", "/p d", "/p\x00", "/" + strings.Repeat("x", 300)} {
		if l, err := discovery.NewLayout(p); !errors.Is(err, discovery.ErrPrefix) {
			t.Errorf("%q was accepted as %q (%v)", p, l.Root(), err)
		}
	}
	l := layout(t)
	k := decode("[::1]:8200")
	for got, want := range map[string]string{
		l.Instance(k): "/pd/decode/[::1]:8200",
		l.Pending(k):  "/pd/pending/decode/[::1]:8200",
		l.Override(k): "/pd/override/decode/[::1]:8200",
		l.Proxy("p"):  "/pd/proxies/p",
		l.Audit("a"):  "/pd/audit/a",
		l.Schema():    "/pd/meta/schema",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
