package schema_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestDecodeRecordRejects(t *testing.T) {
	t.Parallel()
	for _, c := range members.BadValues() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			rec, _, err := schema.DecodeRecord(members.Prefill("10.0.0.1:8100"), []byte(c.Value))
			var rejected *schema.RejectedError
			require.True(t, errors.As(err, &rejected), "error %v of type %T, record %+v", err, err, rec)
			assert.Contains(t, rejected.Reason, c.Reason)
			assert.True(t, !strings.ContainsAny(rejected.Reason, "\x1b\x00\n") && len(rejected.Reason) <= 500,
				"reason is not fit to print: %q", rejected.Reason)
		})
	}
}

func TestDecodeRecordAccepts(t *testing.T) {
	t.Parallel()
	k := members.Prefill("10.0.0.1:8100")
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
			rec, bare, err := schema.DecodeRecord(k, []byte(c.value))
			require.NoError(t, err)
			assert.Equal(t, c.bare, bare)
			assert.Empty(t, cmp.Diff(c.want, rec))
		})
	}
}

func TestEncodeRecord(t *testing.T) {
	t.Parallel()
	k := members.Decode("[2001:db8::1]:8200")
	rec := instance.Record{ID: "X", Models: []string{"a<b>&c", "ü"}, Ports: map[string][]int{"side_channel": {5600}}}
	value, err := schema.EncodeRecord(rec)
	require.NoError(t, err)
	assert.Contains(t, string(value), `"a<b>&c"`)
	got, bare, err := schema.DecodeRecord(k, value)
	if err != nil || bare {
		t.Fatal(bare, err)
	}
	rec.V, rec.Role, rec.Address, rec.Scheme, rec.State = 1, k.Role, k.Address, "http", instance.Ready
	assert.Empty(t, cmp.Diff(rec, got))
	_, err = schema.EncodeRecord(instance.Record{ID: strings.Repeat("x", 20000)})
	assert.ErrorIs(t, err, schema.ErrTooLarge, "a large record")
	minus := -1
	_, err = schema.EncodeRecord(instance.Record{Weight: &minus})
	assert.Error(t, err, "an invalid record was encoded")
}

func TestDecodeOverride(t *testing.T) {
	t.Parallel()
	o, err := schema.DecodeOverride([]byte(`{"v":1,"state":"cordon","weight":3,"by":"x","more":1}`))
	require.True(t, err == nil && o.State == instance.Cordon && *o.Weight == 3, "%+v, %v", o, err)
	for _, bad := range []string{"", "drain", `{"state":"gone"}`, `{"weight":-1}`, `{"state":"drain","move_after":-1}`, `{"state":"drain","move_after":10000000000}`, `{"state":1}`, "\xff"} {
		if _, err := schema.DecodeOverride([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestNewLayout(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"/pd", "/pd/"} {
		l, err := schema.NewLayout(p)
		require.NoError(t, err, p)
		assert.Equal(t, "/pd/", l.Root(), p)
	}
	for _, p := range []string{"", "/", "//", "pd", "/a//b", "/mooncake", "/mooncake-store/x", "/oplog", "/p d", "/p\x00", "/" + strings.Repeat("x", 300)} {
		if l, err := schema.NewLayout(p); !errors.Is(err, schema.ErrPrefix) {
			t.Errorf("%q was accepted as %q (%v)", p, l.Root(), err)
		}
	}
	l := members.Layout(t)
	k := members.Decode("[::1]:8200")
	for got, want := range map[string]string{
		l.Instance(k): "/pd/decode/[::1]:8200",
		l.Pending(k):  "/pd/pending/decode/[::1]:8200",
		l.Override(k): "/pd/override/decode/[::1]:8200",
		l.Proxy("p"):  "/pd/proxies/p",
		l.Audit("a"):  "/pd/audit/a",
		l.Schema():    "/pd/meta/schema",
	} {
		assert.Equal(t, want, got)
	}
}

// Models that do not fit into a record are left out, and models_truncated is set.
func TestEncodeRecord_FitsModels(t *testing.T) {
	t.Parallel()
	k := instance.Key{Role: instance.Decode, Address: "10.0.0.1:8000"}
	for _, n := range []int{1, 200, 401, 2500} {
		rec := instance.Record{Labels: map[string]string{"a<b": strings.Repeat("x", 5000)}}
		for i := range n {
			rec.Models = append(rec.Models, fmt.Sprintf("tenant \"%d\" <%s>", i, strings.Repeat("é", 20)))
		}
		all := len(rec.Models)
		raw, err := schema.EncodeRecord(rec)
		require.NoError(t, err)
		got, _, err := schema.DecodeRecord(k, raw)
		require.NoError(t, err)
		if !slices.Equal(got.Models, rec.Models[:len(got.Models)]) || got.ModelsTruncated != (len(got.Models) < all) || len(rec.Models) != all {
			t.Errorf("%d models: %d are left, truncated %v", n, len(got.Models), got.ModelsTruncated)
		}
		spare := instance.MaxRecordBytes - len(raw)
		assert.False(t, got.ModelsTruncated && (spare < 0 || spare > 200), "%d models: %d bytes are left", n, spare)
	}
	raw, err := schema.EncodeRecord(instance.Record{Models: []string{strings.Repeat("x", 20000)}})
	if err != nil || strings.Contains(string(raw), "models\"") || !strings.Contains(string(raw), `"models_truncated":true`) {
		t.Errorf("one name that is too long: %s %v", raw, err)
	}
}

func TestDecodeModelRoute(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{ // part of the error; "" for none
		`{"v":1,"targets":[{"model":"Qwen/Qwen2.5-72B"}]}`:                                                 "",
		`{"v":9,"targets":[{"model":"a","weight":0},{"model":"a","selector":"tier=x"}],"new":1}`:           "",
		`{"v":1,"targets":[{"model":"a","selector":"label:role in (x,y)"}],"sticky":"key","reason":"why"}`: "",
		``:                                    "JSON object",
		`[]`:                                  "JSON object",
		`{"v":1}`:                             "1 to 16 targets",
		`{"v":1,"targets":[{"model":""}]}`:    "1 to 256 bytes",
		`{"v":1,"targets":[{"model":"a b"}]}`: "spaces",
		`{"v":1,"targets":[{"model":"a","weight":0}]}`:                "all weights are 0",
		`{"v":1,"targets":[{"model":"a","weight":-1}]}`:               "weight -1",
		`{"v":1,"targets":[{"model":"a"},{"model":"a"}]}`:             "occurs twice",
		`{"v":1,"targets":[{"model":"a","selector":"role=prefill"}]}`: "only labels",
		`{"v":1,"targets":[{"model":"a","selector":"=="}]}`:           "selector",
		`{"v":1,"targets":[{"model":"a"}],"sticky":"user"}`:           "session, key or none",
	} {
		_, err := schema.DecodeModelRoute([]byte(value))
		var rejected *schema.RejectedError
		if want == "" && err != nil || want != "" && (!errors.As(err, &rejected) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}

// A route cannot have the name of a model that an engine here serves, unless it splits that model's requests.
func TestModelRoute_Conflict(t *testing.T) {
	t.Parallel()
	served := func(view instance.View) []*instance.Instance {
		return []*instance.Instance{{View: view, Record: instance.Record{Models: []string{"a", "chat"}}}}
	}
	for _, tc := range []struct {
		name, target string
		all          []*instance.Instance
		conflict     bool
	}{
		{"chat", "a", nil, false},
		{"chat", "a", served(""), true},
		{"chat", "a", served(instance.Orphan), true},
		{"chat", "a", served(instance.Elsewhere), false},
		{"chat", "chat", served(""), false},
		{"other", "a", served(""), false},
	} {
		r := schema.ModelRoute{Targets: []schema.ModelTarget{{Model: tc.target}}}
		assert.Equal(t, tc.conflict, (r.Conflict(tc.name, tc.all) != ""), tc)
	}
}
