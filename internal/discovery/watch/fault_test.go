package watch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Without etcd the state is cold, and every error has the cause, which not every attempt looks for.
// Once etcd answers, everything is followed.
func TestWatcherStartsWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	etcd.Kill()
	w := members.Watch(t, members.Dial(t, etcd.Endpoint()), members.WatcherOptions(t))
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.ListErrors != 0 && s.CheckErrors > 2 && s.State == watch.Cold })
	assert.Contains(t, w.Status().LastError, "connection refused")
	select {
	case <-w.Ready():
		t.Fatal("ready without a list")
	default:
	}
	etcd.Restart()
	members.WaitReady(t, w)
	members.WaitState(t, w, watch.Live)
}

func TestWatcher_StopsAtAnyTime(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	l := members.Layout(t)
	cli := members.Dial(t, etcd.Endpoint())
	members.Put(t, cli, l.Instance(members.Prefill("10.0.0.1:1")), "")
	prober := members.NewProber()
	prober.Hold = make(chan struct{}) // a probe that never ends without release
	o := members.WatcherOptions(t)
	o.Prober = prober
	for _, when := range []struct {
		name string
		wait func(w *watch.Watcher)
	}{
		{"at once", func(*watch.Watcher) {}},
		{"probing", func(w *watch.Watcher) {
			testkit.EventuallyTrue(t, members.Soon, func() bool { return prober.Count("10.0.0.1:1") != 0 },
				"no probe yet")
		}},
		{"live", func(w *watch.Watcher) { members.WaitState(t, w, watch.Live) }},
		{"without etcd", func(w *watch.Watcher) {
			members.WaitReady(t, w)
			etcd.Kill()
			members.WaitState(t, w, watch.Stale)
		}},
	} {
		w := watch.New(cli, o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		when.wait(w)
		cancel()
		select {
		case <-done:
		case <-time.After(members.Soon):
			t.Fatalf("%s: Run does not end", when.name)
		}
	}
}
