package watch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// No etcd at all: cold, a reason, and everything as soon as it is there.
func TestWatcherStartsWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	etcd.Stop()
	w := members.Watch(t, members.Dial(t, etcd.Endpoint()), members.WatcherOptions(t))
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.ListErrors != 0 && s.LastError != "" && s.State == watch.Cold })
	select {
	case <-w.Ready():
		t.Fatal("ready without a list")
	default:
	}
	etcd.Restart()
	members.WaitReady(t, w)
	members.WaitState(t, w, watch.Live)
}

func TestWatcherEndsWhateverItDoes(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	l := members.Layout(t)
	cli := members.Dial(t, etcd.Endpoint())
	members.Put(t, cli, l.Instance(members.Prefill("10.0.0.1:1")), "")
	prober := members.NewProber()
	prober.Hold = make(chan struct{}) // a probe that never ends by itself
	o := members.WatcherOptions(t)
	o.Prober = prober
	for _, when := range []struct {
		name string
		wait func(w *watch.Watcher)
	}{
		{"at once", func(*watch.Watcher) {}},
		{"probing", func(w *watch.Watcher) {
			testkit.Eventually(t, members.Soon, func() error {
				if prober.Count("10.0.0.1:1") == 0 {
					return errors.New("no probe yet")
				}
				return nil
			})
		}},
		{"live", func(w *watch.Watcher) { members.WaitState(t, w, watch.Live) }},
		{"without etcd", func(w *watch.Watcher) {
			members.WaitReady(t, w)
			etcd.Stop()
			members.WaitState(t, w, watch.Stale)
		}},
	} {
		w := watch.New(cli, o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		when.wait(w)
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("%s: %v", when.name, err)
			}
		case <-time.After(members.Soon):
			t.Fatalf("%s: Run does not end", when.name)
		}
	}
}

// What follows is no code of ours: it pins down what the code relies on, so
// that an upgrade of etcd that changes it is noticed.

func TestFactCompactedWatchEndsOnce(t *testing.T) {
	t.Parallel()
	cli := testkit.StartEtcd(t).Client(t)
	var rev int64
	for range 5 {
		rev = members.Put(t, cli, "/k", "v")
	}
	if _, err := cli.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	ch := cli.Watch(t.Context(), "/k", clientv3.WithRev(2))
	resp := <-ch
	if !resp.Canceled || resp.CompactRevision != rev || !errors.Is(resp.Err(), rpctypes.ErrCompacted) || len(resp.Events) != 0 {
		t.Fatalf("%+v", resp)
	}
	if resp, ok := <-ch; ok {
		t.Fatalf("one more response: %+v", resp)
	}
}

func TestFactDeadEtcdLeavesWatchSilent(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcdProcess(t)
	cli := members.Dial(t, etcd.Endpoint())
	ch := cli.Watch(clientv3.WithRequireLeader(t.Context()), "/k")
	w := members.Watch(t, cli, members.WatcherOptions(t))
	members.WaitState(t, w, watch.Live)
	etcd.Kill()
	members.WaitState(t, w, watch.Stale) // the check has found etcd unreachable
	select {
	case resp, ok := <-ch:
		t.Fatalf("the watch spoke: %+v, %t", resp, ok)
	default:
	}
}

func TestFactWatchWithRevisionDoesNotReplay(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcdProcess(t)
	cli := members.Dial(t, etcd.Endpoint())
	rev := members.Put(t, cli, "/k", "old")
	ch := cli.Watch(t.Context(), "/k", clientv3.WithRev(rev+1), clientv3.WithCreatedNotify())
	if resp := <-ch; !resp.Created {
		t.Fatalf("%+v", resp)
	}
	etcd.Restart()
	members.Put(t, members.Dial(t, etcd.Endpoint()), "/k", "new")
	resp := <-ch
	if len(resp.Events) != 1 || string(resp.Events[0].Kv.Value) != "new" {
		t.Fatalf("%+v", resp)
	}
}

func TestFactLeaseOutlivesRestart(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcdProcess(t)
	cli := members.Dial(t, etcd.Endpoint())
	resp, err := cli.Grant(t.Context(), 1)
	require.NoError(t, err)
	if resp.TTL != 2 {
		t.Errorf("TTL 1 asked, %d granted; 2 is what is documented", resp.TTL)
	}
	id := members.Lease(t, cli, 60)
	members.Put(t, cli, "/k", "v", clientv3.WithLease(id))
	etcd.Restart()
	got, err := cli.KeepAliveOnce(t.Context(), id)
	if err != nil || got.TTL <= 0 {
		t.Fatalf("the lease is lost: %+v, %v", got, err)
	}
}

func TestFactUnknownLeaseIsNotFound(t *testing.T) {
	t.Parallel()
	cli := testkit.StartEtcd(t).Client(t)
	id := members.Lease(t, cli, 10)
	if _, err := cli.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := cli.KeepAliveOnce(t.Context(), id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatalf("renewal of a revoked lease: %v", err)
	}
	if _, err := cli.Put(t.Context(), "/k", "v", clientv3.WithLease(id)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatalf("put under a revoked lease: %v", err)
	}
}
