package watch

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// Intents, additions and removals are saved soon: if the proxy is
// killed and starts without etcd, it knows only the saved state.
func TestSave_IntentsPromptly(t *testing.T) {
	t.Parallel()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	const leased, static, override, pending = "decode/10.0.0.1:1", "decode/10.0.0.2:1", "override/decode/10.0.0.1:1", "pending/decode/10.0.0.3:1"
	tab := newTable(l)
	tab.load(nil, 1)
	assert.True(t, tab.unsaved, "a list")
	rev := int64(1)
	put := func(key, value string, lease int64) bool {
		rev++
		tab.unsaved = false
		tab.put(kvOf(l.Root()+key, value, rev, lease))
		return tab.unsaved
	}
	remove := func(key string) bool {
		rev++
		tab.unsaved = false
		tab.remove(kvOf(l.Root()+key, "", rev, 0))
		return tab.unsaved
	}
	for _, tc := range []struct {
		what      string
		got, want bool
	}{
		{"a leased instance", put(leased, `{"v":1}`, 7), true},
		{"another state of it", put(leased, `{"v":1,"state":"draining"}`, 7), false},
		{"an override", put(override, `{"v":1,"state":"drain"}`, 0), true},
		{"an override for a time", put(override, `{"v":1,"state":"cordon"}`, 8), true},
		{"its end", remove(override), true},
		{"a leased instance that goes", remove(leased), true},
		{"a static instance", put(static, `{"v":1}`, 0), true},
		{"a static one that turns leased", put(static, `{"v":1}`, 9), true},
		{"the same again", put(static, `{"v":1}`, 9), false},
		{"a leased one that turns static", put(static, `{"v":1}`, 0), true},
		{"a static one that goes", remove(static), true},
		{"a pending add, which is not saved", put(pending, `{"v":1}`, 0), false},
	} {
		assert.Equal(t, tc.want, tc.got, tc.what)
	}
}

func kvOf(key, value string, rev, lease int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: rev, ModRevision: rev, Version: 1, Lease: lease}
}
