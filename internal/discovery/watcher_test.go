package discovery_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

func TestWatcherColdStart(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := discovery.NewWatcher(cli, quick(t))
	if s := w.Snapshot(); s == nil || s.Revision != 0 || len(s.All()) != 0 {
		t.Fatalf("before Run the snapshot is %+v, want an empty one of revision 0", s)
	}
	if s := w.Status().State; s != discovery.Cold {
		t.Fatalf("state before Run is %s", s)
	}
	cold := w.Snapshot()
	rev := put(t, cli, l.Instance(prefill("10.0.0.1:8100")), ready)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	waitReady(t, w)
	s := w.Snapshot()
	if s.Revision < rev || len(s.Usable(instance.Prefill)) != 1 {
		t.Fatalf("first snapshot: revision %d, %d usable", s.Revision, len(s.Usable(instance.Prefill)))
	}
	select {
	case <-cold.Changed():
	default:
		t.Fatal("the empty snapshot was not superseded")
	}
	waitState(t, w, discovery.Live)
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("Run: %v", err)
	}
}

func TestWatcherFollowsChanges(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	k := decode("10.0.0.2:8200")

	rev := put(t, cli, l.Instance(k), ready)
	in := waitFor(t, w, k, usable)
	if in.ModRevision != rev || !in.Static() || in.Version != 1 {
		t.Fatalf("after put: %+v", in)
	}
	id := lease(t, cli, 60)
	rev = put(t, cli, l.Instance(k), `{"id":"B","models":["m"],"state":"draining"}`, clientv3.WithLease(id))
	in = waitFor(t, w, k, atRevision(rev))
	if in.Record.State != instance.Draining || in.Static() || in.Lease != int64(id) || in.Incarnation() != "B" || in.Usable() {
		t.Fatalf("after the second put: %+v", in)
	}
	del(t, cli, l.Instance(k))
	waitFor(t, w, k, nil)
}

// A transaction over several keys is seen whole or not at all.
func TestWatcherAppliesTransactionsWhole(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	a, b := prefill("10.0.0.1:1"), decode("10.0.0.1:2")
	stop := make(chan struct{})
	bad := make(chan string, 1)
	go func() {
		defer close(bad)
		for {
			s := w.Snapshot()
			_, hasA := s.Lookup(a)
			_, hasB := s.Lookup(b)
			if hasA == hasB && s.Revision > 1 {
				bad <- fmt.Sprintf("revision %d shows half a transaction (%t, %t)", s.Revision, hasA, hasB)
				return
			}
			select {
			case <-s.Changed():
			case <-stop:
				return
			}
		}
	}()
	put(t, cli, l.Instance(a), ready)
	waitFor(t, w, a, usable)
	for range 50 {
		for _, k := range [][2]instance.Key{{a, b}, {b, a}} {
			resp, err := cli.Txn(t.Context()).Then(
				clientv3.OpDelete(l.Instance(k[0])), clientv3.OpPut(l.Instance(k[1]), ready)).Commit()
			if err != nil || !resp.Succeeded {
				t.Fatal(err)
			}
		}
	}
	testkit.Eventually(t, soon, func() error {
		if in, ok := w.Snapshot().Lookup(a); !ok || in.Version != 1 {
			return fmt.Errorf("not there yet")
		}
		return nil
	})
	close(stop)
	if msg := <-bad; msg != "" {
		t.Fatal(msg)
	}
}

func TestWatcherKeepsToItsPrefix(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	foreign := []string{
		"/pd-old/prefill/10.0.0.1:1", "/pd", "/pdx/decode/10.0.0.1:1", "mooncake/ram/10.0.0.1:1",
		"/pd/prefill-old/10.0.0.1:1", "/pd/prefiller", "/pd/both/10.0.0.1:1", "/pd/load/x", "/pd/proxies/x", "/pd/audit/x",
		"/pd/override/both/10.0.0.1:1", "/pd/decode", "/pd/meta/other",
	}
	for _, key := range foreign {
		put(t, cli, key, ready)
	}
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	for _, key := range foreign {
		put(t, cli, key, ready+" ")
	}
	k := prefill("10.0.0.1:1")
	put(t, cli, l.Instance(k), ready)
	waitFor(t, w, k, usable)
	if all := w.Snapshot().All(); len(all) != 1 {
		for _, in := range all {
			t.Logf("%s %s", in.Key, in.Reason)
		}
		t.Fatalf("%d instances, want one", len(all))
	}
}

func TestWatcherBadValuesCostOneEntry(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	good := prefill("10.0.0.1:8100")
	put(t, cli, l.Instance(good), ready)
	for i, c := range badValues() {
		k := decode(fmt.Sprintf("10.0.1.%d:8200", i+1))
		put(t, cli, l.Instance(k), c.value)
		in := waitFor(t, w, k, hasView(instance.Rejected))
		if !strings.Contains(in.Reason, c.reason) {
			t.Errorf("%s: reason %q does not say %q", c.name, in.Reason, c.reason)
		}
		if in.Usable() {
			t.Errorf("%s: usable", c.name)
		}
	}
	if in, ok := w.Snapshot().Lookup(good); !ok || !in.Usable() {
		t.Fatal("the good instance suffered")
	}
	testkit.Eventually(t, soon, func() error {
		if n := w.Status().Rejected; n != len(badValues()) {
			return fmt.Errorf("%d counted as rejected", n)
		}
		return nil
	})
}

func TestWatcherKeepsLastGoodValue(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	k := prefill("10.0.0.1:8100")
	for _, c := range badValues() {
		put(t, cli, l.Instance(k), ready)
		waitFor(t, w, k, func(in *instance.Instance) error {
			if in.Reason != "" {
				return fmt.Errorf("reason is still %q", in.Reason)
			}
			return usable(in)
		})
		rev := put(t, cli, l.Instance(k), c.value)
		in := waitFor(t, w, k, atRevision(rev))
		if !in.Usable() || in.Record.ID != "A" || !strings.Contains(in.Reason, c.reason) || !strings.Contains(in.Reason, "last good value") {
			t.Errorf("%s: %+v", c.name, in)
		}
	}
	// A list keeps it too, as long as the key was not deleted in between.
	rev := put(t, cli, l.Instance(k), "{")
	waitFor(t, w, k, atRevision(rev))
	lists := w.Status().Lists
	w.Relist("test")
	testkit.Eventually(t, soon, func() error {
		if w.Status().Lists == lists {
			return fmt.Errorf("not listed again yet")
		}
		return nil
	})
	if in, ok := w.Snapshot().Lookup(k); !ok || !in.Usable() {
		t.Fatalf("after a list: %+v", in)
	}
	del(t, cli, l.Instance(k))
	put(t, cli, l.Instance(k), "{")
	waitFor(t, w, k, hasView(instance.Rejected))
}

func TestWatcherRejectsBadKeys(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	for _, c := range []struct{ name, key, shown, reason string }{
		{"no port", "prefill/10.0.0.1", "10.0.0.1", "host:port"},
		{"wildcard", "prefill/0.0.0.0:8100", "0.0.0.0:8100", "wildcard"},
		{"control characters", "prefill/\x1b[31mred\n:1", `\u001b[31mred\n:1`, "invalid instance address"},
		{"not UTF-8", "prefill/\xff\xfe:1", `\xff\xfe:1`, "invalid instance address"},
		{"empty", "prefill/", "", "empty"},
		{"deeper", "prefill/10.0.0.1:1/x", "10.0.0.1:1/x", "invalid instance address"},
	} {
		put(t, cli, l.Root()+c.key, ready)
		in := waitFor(t, w, instance.Key{Role: instance.Prefill, Address: c.shown}, hasView(instance.Rejected))
		if !strings.Contains(in.Reason, c.reason) || strings.ContainsAny(in.Reason, "\x1b\n\xff") {
			t.Errorf("%s: reason %q", c.name, in.Reason)
		}
	}
}

func TestWatcherTakesOtherSpellingsOfAnAddress(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	k := prefill("127.0.0.1:8100")
	rev := put(t, cli, l.Root()+"prefill/localhost:8100", ready)
	in := waitFor(t, w, k, usable)
	if in.ModRevision != rev {
		t.Fatalf("%+v", in)
	}
	// The canonical key wins; the other is shown on a line of its own.
	rev = put(t, cli, l.Instance(k), ready)
	waitFor(t, w, k, atRevision(rev))
	waitFor(t, w, prefill("localhost:8100"), hasView(instance.Rejected))
	if existed, err := discovery.NewStore(cli, l, "test").Remove(t.Context(), k, "test"); err != nil || !existed {
		t.Fatalf("remove: %t, %v", existed, err)
	}
	testkit.Eventually(t, soon, func() error {
		if n := len(w.Snapshot().All()); n != 0 {
			return fmt.Errorf("%d left", n)
		}
		return nil
	})
}

func TestWatcherOverrides(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, cli, quick(t))
	waitReady(t, w)
	k := decode("10.0.0.1:8200")
	put(t, cli, l.Instance(k), ready)
	waitFor(t, w, k, usable)

	intent := func(want instance.Intent, reason string) func(*instance.Instance) error {
		return func(in *instance.Instance) error {
			if in.Intent != want || !strings.Contains(in.Reason, reason) {
				return fmt.Errorf("intent %q (%s)", in.Intent, in.Reason)
			}
			return nil
		}
	}
	put(t, cli, l.Override(k), `{"v":1,"state":"drain","reason":"new disk","by":"ann\u0007"}`)
	in := waitFor(t, w, k, intent(instance.Drain, `drain by ann\u0007: new disk`))
	if in.Usable() || in.Record.State != instance.Ready {
		t.Fatalf("%+v", in)
	}
	// It outlives the record and the incarnation.
	del(t, cli, l.Instance(k))
	waitFor(t, w, k, nil)
	put(t, cli, l.Instance(k), `{"id":"B","models":["m"]}`)
	waitFor(t, w, k, intent(instance.Drain, "new disk"))
	// A broken one leaves the last good one in force.
	put(t, cli, l.Override(k), `{"v":1,`)
	waitFor(t, w, k, intent(instance.Drain, "last good value"))
	put(t, cli, l.Override(k), `{"v":1,"weight":7}`)
	in = waitFor(t, w, k, usable)
	if in.Record.Weight == nil || *in.Record.Weight != 7 {
		t.Fatalf("weight: %+v", in.Record)
	}
	del(t, cli, l.Override(k))
	waitFor(t, w, k, func(in *instance.Instance) error {
		if in.Record.Weight != nil {
			return fmt.Errorf("weight is still there")
		}
		return usable(in)
	})
	// A broken one alone takes no capacity away and is shown.
	put(t, cli, l.Override(k), `{"state":"dran"}`)
	in = waitFor(t, w, k, intent("", "dran"))
	if !in.Usable() {
		t.Fatalf("%+v", in)
	}
	put(t, cli, l.Override(k), `{"state":"removed"}`)
	waitFor(t, w, k, intent(instance.Removed, "removed"))
}

// Whoever has seen a snapshot finds its status, and whoever has seen a status
// its snapshot.
func TestStatusGoesWithTheSnapshot(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	w := watch(t, dial(t, etcd.Endpoint()), quick(t))
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
	for i := range 300 {
		rev := put(t, cli, l.Instance(prefill(fmt.Sprintf("10.0.0.%d:8100", i%200+1))), ready)
		testkit.Eventually(t, soon, func() error {
			if at := w.Snapshot().Revision; at < rev {
				return fmt.Errorf("at %d, want %d", at, rev)
			}
			return nil
		})
	}
	close(quit)
	looking.Wait()
}
