package watch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Fault matrix, row 31: the first pick after a suspension respects drains
// set meanwhile, although the watch has not delivered them yet.
func TestFreshAfterSuspension(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	k := members.Prefill("10.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), members.Ready)
	o := members.WatcherOptions(t)
	o.CheckInterval, o.AuditInterval = time.Hour, time.Hour
	w := members.Watch(t, lossy(t, etcd.Endpoint(), func(*mvccpb.Event) bool { return true }), o)
	members.WaitFor(t, w, k, members.Usable)
	members.WaitState(t, w, watch.Live)
	w.Fresh(t.Context(), time.Now())
	s := w.Status()
	require.True(t, s.Lists == 1 && s.Suspensions == 0, "nothing had happened: %+v", s)
	members.Put(t, cli, l.Override(k), `{"v":1,"state":"drain"}`)
	tries := 0
	testkit.Eventually(t, members.Soon, func() error { // more than one attempt on a slow machine only
		tries++
		w.Suspend()
		w.Fresh(t.Context(), time.Now())
		if in, _ := w.Snapshot().Lookup(k); in.Intent != instance.Drain {
			return fmt.Errorf("picked from before the suspension: %+v", in)
		}
		return nil
	})
	s = w.Status()
	require.True(t, s.Suspensions == int64(tries) && s.Lists >= 2, "%d tries, status: %+v", tries, s)
}

// A presence is renewed each third of its TTL, so it may end two thirds of the
// TTL after its process was suspended. From then on, the proxy must not trust
// its membership, because pdctl drain --wait reports it as vanished.
func TestSuspended_BeforePresenceExpires(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	w := members.Watch(t, etcd.Client(t), watch.Options{Layout: members.Layout(t)})
	members.WaitState(t, w, watch.Live)
	w.SuspendFor(schema.DefaultTTL * 6 / 10)
	w.Fresh(t.Context(), time.Now())
	assert.EqualValues(t, 1, w.Status().Suspensions)
}

// Data that is read just after a suspension may have arrived at its beginning.
func TestReceivedFrom(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		pause, since, later, want time.Duration
	}{
		"no pause":                  {0, -time.Minute, 0, 0},
		"a pause":                   {8 * time.Second, -time.Minute, 0, -8 * time.Second},
		"half of what counts":       {schema.DefaultTTL / 16, -time.Minute, 0, 0},
		"sent during the pause":     {8 * time.Second, -time.Second, 0, -time.Second},
		"sent after the pause":      {8 * time.Second, time.Second, 2 * time.Second, 2 * time.Second},
		"read long after the pause": {8 * time.Second, -time.Minute, time.Minute, time.Minute},
	} {
		w := watch.New(nil, watch.Options{Layout: members.Layout(t)})
		w.SuspendUntil(now, tc.pause)
		w.ReceivedFrom(now.Add(tc.since), now)
		w.SuspendUntil(now.Add(tc.later), 0)
		assert.Equal(t, tc.want, w.ReceivedFrom(now.Add(tc.since), now.Add(tc.later)).Sub(now), name)
	}
}

// Without etcd, the wait ends at its limit, and only the first picks wait.
func TestFreshWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	k := members.Prefill("10.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), members.Ready)
	w := members.Watch(t, cli, members.WatcherOptions(t))
	members.WaitFor(t, w, k, members.Usable)
	members.WaitState(t, w, watch.Live)
	etcd.Kill()
	w.Suspend()
	for range 1000 {
		w.Fresh(t.Context(), time.Now())
	}
	in, ok := w.Snapshot().Lookup(k)
	require.True(t, ok && in.Usable(), "%+v", in)
	etcd.Restart()
	members.WaitState(t, w, watch.Live)
}
