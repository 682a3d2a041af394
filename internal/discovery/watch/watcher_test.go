package watch_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestWatcherColdStart(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	w := watch.New(cli, members.WatcherOptions(t))
	if s := w.Snapshot(); s == nil || s.Revision != 0 || len(s.All()) != 0 {
		t.Fatalf("before Run the snapshot is %+v, want an empty one of revision 0", s)
	}
	require.Equal(t, watch.Cold, w.Status().State, "state before Run")
	cold := w.Snapshot()
	rev := members.Put(t, cli, l.Instance(members.Prefill("10.0.0.1:8100")), members.Ready)

	stop := background.Start(t.Context(), w.Run)
	members.WaitReady(t, w)
	s := w.Snapshot()
	require.True(t, s.Revision >= rev && len(s.Usable(instance.Prefill)) == 1,
		"first snapshot: revision %d, %d usable", s.Revision, len(s.Usable(instance.Prefill)))
	select {
	case <-cold.Changed():
	default:
		t.Fatal("the empty snapshot was not superseded")
	}
	members.WaitState(t, w, watch.Live)
	stop()
}

func TestWatcherFollowsChanges(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.WatcherOptions(t))
	k := members.Decode("10.0.0.2:8200")

	rev := members.Put(t, cli, l.Instance(k), members.Ready)
	in := members.WaitFor(t, w, k, members.Usable)
	require.True(t, in.ModRevision == rev && in.Static() && in.Version == 1, "after put: %+v", in)
	id := members.Lease(t, cli, 60)
	rev = members.Put(t, cli, l.Instance(k), `{"id":"B","models":["m"],"state":"draining"}`, clientv3.WithLease(id))
	in = members.WaitFor(t, w, k, atRevision(rev))
	if in.Record.State != instance.Draining || in.Static() || in.Lease != int64(id) || in.Incarnation() != "B" || in.Usable() {
		t.Fatalf("after the second put: %+v", in)
	}
	members.Del(t, cli, l.Instance(k))
	members.WaitFor(t, w, k, nil)
}

// A transaction over several keys becomes visible as a whole or not at all.
func TestWatcher_AtomicTransactions(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.WatcherOptions(t))
	a, b := members.Prefill("10.0.0.1:1"), members.Decode("10.0.0.1:2")
	members.EverySnapshot(t, w, func(s *instance.Snapshot) error {
		_, hasA := s.Lookup(a)
		_, hasB := s.Lookup(b)
		if hasA == hasB && s.Revision > 1 {
			return fmt.Errorf("half a transaction is visible (%t, %t)", hasA, hasB)
		}
		return nil
	})
	members.Put(t, cli, l.Instance(a), members.Ready)
	members.WaitFor(t, w, a, members.Usable)
	for range 50 {
		for _, k := range [][2]instance.Key{{a, b}, {b, a}} {
			resp, err := cli.Txn(t.Context()).Then(
				clientv3.OpDelete(l.Instance(k[0])), clientv3.OpPut(l.Instance(k[1]), members.Ready)).Commit()
			require.NoError(t, err)
			require.True(t, resp.Succeeded)
		}
	}
	members.WaitFor(t, w, a, members.Is(func(in *instance.Instance) bool { return in.Version == 1 }))
}

func TestWatcherKeepsToItsPrefix(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	foreign := []string{
		"/pd-old/prefill/10.0.0.1:1", "/pd", "/pdx/decode/10.0.0.1:1", "mooncake/ram/10.0.0.1:1",
		"/pd/prefill-old/10.0.0.1:1", "/pd/prefiller", "/pd/both/10.0.0.1:1", "/pd/load/x", "/pd/proxies/x", "/pd/audit/x",
		"/pd/override/both/10.0.0.1:1", "/pd/decode", "/pd/meta/other",
	}
	for _, key := range foreign {
		members.Put(t, cli, key, members.Ready)
	}
	w := members.Watch(t, cli, members.WatcherOptions(t))
	members.WaitReady(t, w)
	for _, key := range foreign {
		members.Put(t, cli, key, members.Ready+" ")
	}
	k := members.Prefill("10.0.0.1:1")
	members.Put(t, cli, l.Instance(k), members.Ready)
	members.WaitFor(t, w, k, members.Usable)
	if all := w.Snapshot().All(); len(all) != 1 {
		for _, in := range all {
			t.Logf("%s %s", in.Key, in.Reason)
		}
		t.Fatalf("%d instances, want one", len(all))
	}
}

func TestWatcherKeepsLastGoodValue(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.WatcherOptions(t))
	k := members.Prefill("10.0.0.1:8100")
	for _, c := range members.BadValues() {
		members.Put(t, cli, l.Instance(k), members.Ready)
		members.WaitFor(t, w, k, func(in *instance.Instance) error {
			if in.Reason != "" {
				return fmt.Errorf("reason is still %q", in.Reason)
			}
			return members.Usable(in)
		})
		rev := members.Put(t, cli, l.Instance(k), c.Value)
		in := members.WaitFor(t, w, k, atRevision(rev))
		if !in.Usable() || in.Record.ID != "A" || !strings.Contains(in.Reason, c.Reason) || !strings.Contains(in.Reason, "last good value") {
			t.Errorf("%s: %+v", c.Name, in)
		}
	}
	// A list keeps it, too, if the key was not deleted in between.
	rev := members.Put(t, cli, l.Instance(k), "{")
	members.WaitFor(t, w, k, atRevision(rev))
	lists := w.Status().Lists
	w.Relist("test")
	testkit.EventuallyTrue(t, members.Soon, func() bool { return w.Status().Lists != lists }, "not listed again yet")
	in, ok := w.Snapshot().Lookup(k)
	require.True(t, ok && in.Usable(), "after a list: %+v", in)
	members.Del(t, cli, l.Instance(k))
	members.Put(t, cli, l.Instance(k), "{")
	in = members.WaitFor(t, w, k, members.HasView(instance.Rejected))
	assert.True(t, !in.Usable() && in.Reason != "", "without a good value: %+v", in)
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Rejected == 1 })
}

func TestWatcherRejectsBadKeys(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.WatcherOptions(t))
	for _, c := range []struct{ name, key, shown, reason string }{
		{"no port", "prefill/10.0.0.1", "10.0.0.1", "host:port"},
		{"wildcard", "prefill/0.0.0.0:8100", "0.0.0.0:8100", "wildcard"},
		{"control characters", "prefill/\x1b[31mred\n:1", `\u001b[31mred\n:1`, "invalid instance address"},
		{"not UTF-8", "prefill/\xff\xfe:1", `\xff\xfe:1`, "invalid instance address"},
		{"empty", "prefill/", "", "empty"},
		{"deeper", "prefill/10.0.0.1:1/x", "10.0.0.1:1/x", "invalid instance address"},
	} {
		members.Put(t, cli, l.Root()+c.key, members.Ready)
		in := members.WaitFor(t, w, instance.Key{Role: instance.Prefill, Address: c.shown}, members.HasView(instance.Rejected))
		assert.True(t, strings.Contains(in.Reason, c.reason) && !strings.ContainsAny(in.Reason, "\x1b\n\xff"),
			"%s: reason %q", c.name, in.Reason)
	}
}

func TestWatcher_AddressSpellings(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.WatcherOptions(t))
	k := members.Prefill("127.0.0.1:8100")
	rev := members.Put(t, cli, l.Root()+"prefill/localhost:8100", members.Ready)
	in := members.WaitFor(t, w, k, members.Usable)
	require.Equal(t, rev, in.ModRevision, in)
	// The canonical key wins; the other one is shown in a separate line.
	rev = members.Put(t, cli, l.Instance(k), members.Ready)
	members.WaitFor(t, w, k, atRevision(rev))
	members.WaitFor(t, w, members.Prefill("localhost:8100"), members.HasView(instance.Rejected))
	existed, err := store.New(cli, l, "test").Instances.Remove(t.Context(), k, "test")
	require.True(t, err == nil && existed, "remove: %t, %v", existed, err)
	testkit.EventuallyEqual(t, members.Soon, func() int { return len(w.Snapshot().All()) }, 0)
}

func TestWatcherOverrides(t *testing.T) {
	t.Parallel()
	cli, l, w := following(t, members.WatcherOptions(t))
	k := members.Decode("10.0.0.1:8200")
	members.Put(t, cli, l.Instance(k), members.Ready)
	members.WaitFor(t, w, k, members.Usable)

	intent := func(want instance.Intent, reason string) func(*instance.Instance) error {
		return members.Is(func(in *instance.Instance) bool { return in.Intent == want && strings.Contains(in.Reason, reason) })
	}
	members.Put(t, cli, l.Override(k), `{"v":1,"state":"drain","reason":"new disk","by":"ann\u0007"}`)
	in := members.WaitFor(t, w, k, intent(instance.Drain, `drain by ann\u0007: new disk`))
	require.False(t, in.Usable())
	require.Equal(t, instance.Ready, in.Record.State)
	// The intent outlives the record and the incarnation.
	members.Del(t, cli, l.Instance(k))
	members.WaitFor(t, w, k, nil)
	members.Put(t, cli, l.Instance(k), `{"id":"B","models":["m"]}`)
	members.WaitFor(t, w, k, intent(instance.Drain, "new disk"))
	// An invalid override leaves the last good one active.
	members.Put(t, cli, l.Override(k), `{"v":1,`)
	members.WaitFor(t, w, k, intent(instance.Drain, "last good value"))
	members.Put(t, cli, l.Override(k), `{"v":1,"weight":7}`)
	in = members.WaitFor(t, w, k, members.Usable)
	require.True(t, in.Record.Weight != nil && *in.Record.Weight == 7, "weight: %+v", in.Record)
	members.Del(t, cli, l.Override(k))
	members.WaitFor(t, w, k, func(in *instance.Instance) error {
		if in.Record.Weight != nil {
			return fmt.Errorf("weight is still there")
		}
		return members.Usable(in)
	})
	// An invalid override without a last good one removes no capacity and is shown.
	members.Put(t, cli, l.Override(k), `{"state":"dran"}`)
	in = members.WaitFor(t, w, k, intent("", "dran"))
	require.True(t, in.Usable(), in)
	members.Put(t, cli, l.Override(k), `{"state":"removed"}`)
	members.WaitFor(t, w, k, intent(instance.Removed, "removed"))
}

// The status is never older than a snapshot that was read before
// it, and the snapshot never older than its status.
func TestStatus_MatchesSnapshot(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	w := members.Watch(t, members.Dial(t, etcd.Endpoint()), members.WatcherOptions(t))
	quit := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			if snap, s := w.Snapshot(), w.Status(); s.Revision < snap.Revision {
				t.Errorf("the status is older than the snapshot at %d: %+v", snap.Revision, s)
				return
			}
			if s, snap := w.Status(), w.Snapshot(); snap.Revision < s.Revision {
				t.Errorf("the snapshot at %d is older than its status: %+v", snap.Revision, s)
				return
			}
		}
	})
	for i := range longform.Count(100, 300) {
		rev := members.Put(t, cli, l.Instance(members.Prefill(fmt.Sprintf("10.0.0.%d:8100", i%200+1))), members.Ready)
		testkit.Until(t, members.Soon, func() int64 { return w.Snapshot().Revision }, func(at int64) bool { return at >= rev })
	}
	close(quit)
	looking.Wait()
}

func TestMain(m *testing.M) {
	leak.Main(m)
}

// following starts an etcd and a Watcher of it, and waits for the first list.
func following(t testing.TB, o watch.Options) (*clientv3.Client, schema.Layout, *watch.Watcher) {
	t.Helper()
	cli := etcdtest.Start(t).Client(t)
	w := members.Watch(t, cli, o)
	members.WaitReady(t, w)
	return cli, o.Layout, w
}

// atRevision returns a check of the revision of an instance.
func atRevision(rev int64) func(*instance.Instance) error {
	return members.Is(func(in *instance.Instance) bool { return in.ModRevision == rev })
}

// pendings lists the pending adds of a snapshot.
func pendings(s *instance.Snapshot) []*instance.Instance {
	var out []*instance.Instance
	for _, in := range s.All() {
		if in.View == instance.Pending {
			out = append(out, in)
		}
	}
	return out
}

// leased puts a ready record under a lease of its own.
func leased(t testing.TB, cli *clientv3.Client, l schema.Layout, k instance.Key) clientv3.LeaseID {
	t.Helper()
	id := members.Lease(t, cli, 600)
	members.Put(t, cli, l.Instance(k), members.Ready, clientv3.WithLease(id))
	return id
}
