package watch_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Documents are followed like the membership. They survive a restart of the proxy without
// etcd and the loss of etcd's data; one with a time limit ends with its store.
func TestDocuments(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
	st := store.New(cli, l, "test")
	chat, code := instance.Key{Role: schema.Models, Address: "org/chat"}, instance.Key{Role: schema.Models, Address: "code"}
	put := func(k instance.Key, value string, d time.Duration) {
		t.Helper()
		if revision, err := st.Documents.Put(t.Context(), k, []byte(value), store.DocumentOptions{For: d}); err != nil || revision == 0 {
			t.Fatal(revision, err)
		}
	}
	has := func(w *watch.Watcher, want ...string) {
		t.Helper()
		testkit.Eventually(t, members.Soon, func() error {
			var is []string
			for _, d := range w.Snapshot().Documents.In(schema.Models) {
				is = append(is, d.Key.Address+string(d.Value))
			}
			if fmt.Sprint(is) != fmt.Sprint(want) {
				return fmt.Errorf("%v, want %v", is, want)
			}
			return nil
		})
	}
	put(chat, `{"v":1}`, 0)
	put(code, `{}`, time.Hour)
	members.Put(t, cli, l.Document(instance.Key{Role: schema.Models, Address: "bad"}), "no object")
	o := members.Probing(t, prober, "")
	o.StateDir = filepath.Join(t.TempDir(), "state")
	w, stop := runWatcher(t, cli, o)
	has(w, `code{}`, `org/chat{"v":1}`)
	require.Len(t, w.Snapshot().All(), 0)
	assert.Equal(t, 1, w.Status().Rejected)
	put(chat, `{"v":2}`, 0)
	has(w, `code{}`, `org/chat{"v":2}`)
	// An invalid value leaves the last good one in effect.
	members.Put(t, cli, l.Document(chat), "{")
	rejected := func(want int) {
		t.Helper()
		testkit.EventuallyEqual(t, members.Soon, func() int { return w.Status().Rejected }, want)
	}
	rejected(2)
	has(w, `code{}`, `org/chat{"v":2}`)
	put(chat, `{"v":2}`, 0)
	rejected(1)
	has(w, `code{}`, `org/chat{"v":2}`)
	before := w.Snapshot()
	k := members.Prefill("10.0.0.1:8100")
	prober.Answer(k.Address, "m")
	members.Put(t, cli, l.Instance(k), members.Ready)
	members.WaitFor(t, w, k, members.Usable)
	assert.Same(t, before.Documents, w.Snapshot().Documents, "a change of an instance copied the documents")
	stop()

	etcd.Kill()
	w, stop = runWatcher(t, members.Dial(t, etcd.Endpoint()), o)
	has(w, `code{}`, `org/chat{"v":2}`)
	etcd.Wipe()
	etcd.Restart()
	members.WaitState(t, w, watch.Live)
	has(w, `org/chat{"v":2}`)
	assert.Equal(t, "[models/org/chat prefill/10.0.0.1:8100]", fmt.Sprint(w.Status().Kept))
	stop()

	again := members.Dial(t, etcd.Endpoint())
	st = store.New(again, l, "test")
	o.Writer = st.Watch
	w, _ = runWatcher(t, again, o)
	has(w, `org/chat{"v":2}`)
	members.WaitState(t, w, watch.Live)
	require.NoError(t, st.Kept.Order(t.Context(), schema.OrderRestore, nil, ""))
	testkit.Eventually(t, members.Soon, func() error {
		if list, err := st.Documents.List(t.Context(), schema.Models); err != nil || len(list) != 1 || string(list[0].Value) != `{"v":2}` {
			return fmt.Errorf("%+v, %w", list, err)
		}
		return nil
	})
	if revision, err := st.Documents.Delete(t.Context(), chat, "old"); err != nil || revision == 0 {
		t.Fatal(revision, err)
	}
	has(w)

	// The new store has another value at the same revision as the former one.
	revision, err := st.Documents.Put(t.Context(), chat, []byte(`{"v":3}`), store.DocumentOptions{})
	require.NoError(t, err)
	has(w, `org/chat{"v":3}`)
	etcd.Wipe()
	etcd.Restart()
	members.WaitStatus(t, w, func(s watch.Status) bool { return len(s.Kept) == 2 })
	for members.Put(t, again, "/other", "") < revision-1 {
	}
	require.Equal(t, revision, members.Put(t, again, l.Document(chat), `{"v":4}`), "at revision")
	has(w, `org/chat{"v":4}`)
}
