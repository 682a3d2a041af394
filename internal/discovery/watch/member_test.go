package watch_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// If the member to which an agent renews its lease hangs, the agent renews at another
// member before the lease expires. Keepalive would detect it only after 13 s.
func TestRenewal_LeavesHungMember(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault func(*etcdtest.Server, *testkit.Link)
	}{
		{"paused", func(m *etcdtest.Server, _ *testkit.Link) { m.Pause() }},
		{"blackhole", func(_ *etcdtest.Server, l *testkit.Link) { l.Freeze() }},
		{"half open", func(_ *etcdtest.Server, l *testkit.Link) { l.HalfOpen() }},
		{"one way", func(_ *etcdtest.Server, l *testkit.Link) { l.OneWay(testkit.ToClient) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := etcdtest.StartCluster(t, 3)
			victim := c.Follower()
			cli, link, addOthers := members.OnMember(t, c, victim)
			const ttl = 10 * time.Second
			var unknown atomic.Bool
			r := members.Register(t, cli, lease.RegistrarOptions{
				Layout: members.Layout(t), Key: members.Prefill("10.0.0.1:1"), TTL: ttl, HostID: "h",
				OnEvent: func(s lease.Status) {
					if s.Phase == lease.Unknown {
						unknown.Store(true)
					}
				},
			})
			r.Set(instance.Record{ID: "A", Models: []string{"m"}})
			members.WaitPhase(t, r, lease.Registered)
			before := r.Status()
			tc.fault(victim, link)
			addOthers()
			// The first failed call is a renewal, or a check of the key, which makes the phase unknown.
			members.WaitRegistration(t, r, func(s lease.Status) bool {
				return (s.RenewalFails != 0 || unknown.Load()) && s.Renewals >= before.Renewals+3
			})
			if s := r.Status(); s.LeasesLost != 0 || s.LeaseID != before.LeaseID || s.Registrations != 1 {
				t.Errorf("before %+v, after %+v", before, s)
			}
		})
	}
}

// The only etcd answers more slowly than the first deadline. It is
// followed nevertheless, and never called stale after its first answer.
func TestSlowEtcd_NotStale(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	direct, l := etcd.Client(t), members.Layout(t)
	link := testkit.StartLink(t, etcd.Endpoint())
	link.Delay(600 * time.Millisecond) // each way: 1.2 s for each answer
	o := members.WatcherOptions(t)
	o.CheckInterval, o.AuditInterval = 200*time.Millisecond, 200*time.Millisecond
	w := members.Watch(t, members.Dial(t, link.Address()), o)
	members.WaitReady(t, w)
	members.WaitState(t, w, watch.Live)
	lists := w.Status().Lists
	for i := range 3 {
		k := members.Prefill(fmt.Sprintf("10.0.0.%d:1", i+1))
		members.Put(t, direct, l.Instance(k), members.Ready)
		members.WaitFor(t, w, k, members.Usable)
	}
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Audits >= 3 && s.Checks >= 3 })
	s := w.Status()
	assert.True(t, s.State == watch.Live && s.Lists == lists, "it is followed badly: %+v", s)
}

// A watch hangs on a member that gets no other calls. Two audits at
// other members detect it, the second soon after the first.
func TestWatch_LeavesSilentMember(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3)
	victim := c.Follower()
	cli, link, addOthers := members.OnMember(t, c, victim)
	o := members.WatcherOptions(t)
	o.CheckInterval, o.AuditInterval = time.Hour, 5*time.Second
	w := members.Watch(t, cli, o)
	members.WaitReady(t, w)
	members.WaitState(t, w, watch.Live)
	link.Freeze()
	addOthers()
	// Calls of another user of this client move it to another member; the watch stays where it is.
	testkit.Eventually(t, members.Soon, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		_, err := cli.Get(ctx, "x")
		return err
	})
	k := members.Prefill("10.0.0.1:1")
	members.Put(t, etcdtest.Client(t, c.Others(victim)[0].Endpoint()), members.Layout(t).Instance(k), members.Ready)
	members.WaitFor(t, w, k, members.Usable)
	members.WaitState(t, w, watch.Live)
	// After an audit without an answer, the next audit, by another member, has the same effect.
	s := w.Status()
	assert.True(t, (s.Drift == 1 || s.AuditErrors != 0) && s.Epochs == 0, "%+v", s)
}
