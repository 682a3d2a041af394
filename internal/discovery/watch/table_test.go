package watch

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func tableOf(t *testing.T) *table {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	return newTable(l)
}

func testKV(key string, create, mod int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(`{"models":["m"]}`), CreateRevision: create, ModRevision: mod, Version: 1}
}

// Repeated and late changes have no effect.
func TestTableIsIdempotent(t *testing.T) {
	t.Parallel()
	tb := tableOf(t)
	const a, b = "/pd/prefill/10.0.0.1:1", "/pd/prefill/10.0.0.2:1"
	tb.load([]*mvccpb.KeyValue{testKV(a, 5, 5)}, 10)
	for _, step := range []struct {
		name string
		do   func() bool
		want bool
	}{
		{"older put of a key in the list", func() bool { return tb.put(testKV(a, 4, 4)) }, false},
		{"same put", func() bool { return tb.put(testKV(a, 5, 5)) }, false},
		{"put from before the list", func() bool { return tb.put(testKV(b, 9, 9)) }, false},
		{"delete from before the put", func() bool { return tb.remove(testKV(a, 0, 5)) }, false},
		{"new put", func() bool { return tb.put(testKV(b, 11, 11)) }, true},
		{"replayed put", func() bool { return tb.put(testKV(b, 11, 11)) }, false},
		{"delete", func() bool { tb.revision = 12; return tb.remove(testKV(a, 0, 12)) }, true},
		{"replayed delete", func() bool { return tb.remove(testKV(a, 0, 12)) }, false},
		{"replayed put of what was deleted", func() bool { return tb.put(testKV(a, 5, 5)) }, false},
		{"put again", func() bool { tb.revision = 13; return tb.put(testKV(a, 13, 13)) }, true},
		{"late delete", func() bool { return tb.remove(testKV(a, 0, 12)) }, false},
		{"schema", func() bool { return tb.put(testKV("/pd/meta/schema", 14, 14)) }, false},
		{"foreign", func() bool { return tb.put(testKV("/pd-old/prefill/10.0.0.3:1", 14, 14)) }, false},
	} {
		assert.Equal(t, step.want, step.do(), "%s: changed", step.name)
	}
	require.Len(t, tb.entries, 2)
	assert.EqualValues(t, 13, tb.applied)
	// A list of an older store resets the applied revision.
	tb.load([]*mvccpb.KeyValue{testKV(a, 2, 2)}, 3)
	assert.True(t, tb.revision == 3 && tb.applied == 2 && len(tb.entries) == 1,
		"revision %d, applied %d", tb.revision, tb.applied)
}

// Single changes yield the same views as a list of the result, and unchanged views are shared.
func TestTableChangesEqualList(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	keys := []string{}
	for _, role := range []string{"prefill/", "decode/"} {
		for _, at := range []string{"", "pending/", "override/"} {
			for i := range 4 {
				keys = append(keys, "/pd/"+at+role+fmt.Sprintf("127.0.0.1:%d", i+1))
			}
			keys = append(keys, "/pd/"+at+role+"localhost:1", "/pd/"+at+role+"LOCALHOST:1", "/pd/"+at+role+"0.0.0.0:1")
		}
	}
	values := []string{``, `{"models":["m"]}`, `{"v":1,"state":"drain"}`, `{`, `{"weight":3}`}
	live := map[string]*mvccpb.KeyValue{}
	changed := tableOf(t)
	rev := int64(1)
	changed.load(nil, rev)
	for range 1000 { // each key changes at least 20 times
		rev++
		key := keys[rng.IntN(len(keys))]
		if old, ok := live[key]; ok && rng.IntN(3) == 0 {
			delete(live, key)
			changed.remove(&mvccpb.KeyValue{Key: old.Key, ModRevision: rev})
		} else {
			kv := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(values[rng.IntN(len(values))]), CreateRevision: rev, ModRevision: rev, Version: 1}
			live[key] = kv
			changed.put(kv)
		}
		changed.revision = rev
		before := changed.snapshot(verify.Facts{}).All()
		require.Equal(t, changed.snapshot(verify.Facts{}).All(), before,
			"two views of the same table share nothing")
		listed := tableOf(t)
		kvs := []*mvccpb.KeyValue{}
		for _, kv := range live {
			kvs = append(kvs, kv)
		}
		listed.load(kvs, rev)
		want := listed.snapshot(verify.Facts{}).All()
		require.Equal(t, lines(want), lines(before), "at revision %d\n\nwant", rev)
	}
}

func lines(all []*instance.Instance) []string {
	out := make([]string, 0, len(all))
	for _, in := range all {
		b, err := json.Marshal(in.List()) // which follows pointers
		if err != nil {
			panic(err)
		}
		out = append(out, string(b)+"\n")
	}
	return out
}
