package discovery_test

import (
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// Fault matrix, row 31: whoever picks after a suspension sees what was drained
// meanwhile, although the watch has not told it yet.
func TestFreshAfterSuspension(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	k := prefill("10.0.0.1:8100")
	put(t, cli, l.Instance(k), ready)
	o := quick(t)
	o.CheckInterval, o.AuditInterval = time.Hour, time.Hour
	w := watch(t, lossy(t, etcd.Endpoint(), func(*mvccpb.Event) bool { return true }), o)
	waitFor(t, w, k, usable)
	waitState(t, w, discovery.Live)
	w.Fresh(t.Context(), time.Now())
	if s := w.Status(); s.Lists != 1 || s.Suspensions != 0 {
		t.Fatalf("nothing had happened: %+v", s)
	}
	put(t, cli, l.Override(k), `{"v":1,"state":"drain"}`)
	tries := 0
	testkit.Eventually(t, soon, func() error { // more than one try on a slow machine only
		tries++
		w.Suspend()
		w.Fresh(t.Context(), time.Now())
		if in, _ := w.Snapshot().Lookup(k); in.Intent != instance.Drain {
			return fmt.Errorf("picked from before the suspension: %+v", in)
		}
		return nil
	})
	if s := w.Status(); s.Suspensions != int64(tries) || s.Lists < 2 {
		t.Fatalf("%d tries, status: %+v", tries, s)
	}
}

// A presence is renewed each third of its TTL, so it may end two thirds of it after its
// process was suspended. Who was away for so long is not believed to know the membership:
// pdctl drain --wait has named it by then.
func TestSuspendedSoonerThanThePresenceEnds(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	w := watch(t, etcd.Client(t), discovery.WatcherOptions{Layout: layout(t)})
	waitState(t, w, discovery.Live)
	w.SuspendFor(discovery.DefaultTTL * 6 / 10)
	w.Fresh(t.Context(), time.Now())
	if s := w.Status(); s.Suspensions != 1 {
		t.Errorf("%+v", s)
	}
}

// Without etcd the wait ends by itself, and only the first picks wait.
func TestFreshWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli, l := etcd.Client(t), layout(t)
	k := prefill("10.0.0.1:8100")
	put(t, cli, l.Instance(k), ready)
	w := watch(t, cli, quick(t))
	waitFor(t, w, k, usable)
	waitState(t, w, discovery.Live)
	etcd.Stop()
	w.Suspend()
	for range 1000 {
		w.Fresh(t.Context(), time.Now())
	}
	if in, ok := w.Snapshot().Lookup(k); !ok || !in.Usable() {
		t.Fatalf("%+v", in)
	}
	etcd.Restart()
	waitState(t, w, discovery.Live)
}

func BenchmarkFresh(b *testing.B) {
	w := discovery.NewWatcher(nil, discovery.WatcherOptions{Layout: layout(b)})
	for b.Loop() {
		w.Fresh(b.Context(), time.Now())
	}
}
