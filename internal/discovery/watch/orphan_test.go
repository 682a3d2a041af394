package watch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// orphanRig is a Watcher with a prober that answers for every instance in it.
type orphanRig struct {
	cli    *clientv3.Client
	l      schema.Layout
	prober *members.Prober
	w      *watch.Watcher
	ids    map[instance.Key]clientv3.LeaseID
	keys   []instance.Key
}

func newOrphanRig(t testing.TB, n int, change func(*watch.Options)) *orphanRig {
	t.Helper()
	r := &orphanRig{cli: etcdtest.Start(t).Client(t), l: members.Layout(t), prober: members.NewProber(), ids: map[instance.Key]clientv3.LeaseID{}}
	for i := range n {
		k := members.Prefill(fmt.Sprintf("10.0.0.%d:8100", i+1))
		r.keys = append(r.keys, k)
		r.prober.Answer(k.Address, "m")
		r.ids[k] = leased(t, r.cli, r.l, k)
	}
	o := members.Probing(t, r.prober, "")
	o.OrphanGrace = time.Hour
	if change != nil {
		change(&o)
	}
	r.w = members.Watch(t, r.cli, o)
	for _, k := range r.keys {
		members.WaitFor(t, r.w, k, members.Usable)
	}
	members.WaitState(t, r.w, watch.Live)
	return r
}

func orphan(in *instance.Instance) error {
	if in.View != instance.Orphan || !in.Usable() || in.Reason == "" {
		return fmt.Errorf("%s is no orphan that is served: %+v", in.Key, in)
	}
	return nil
}

// noOrphan fails the test if any snapshot until its end has an orphan.
func noOrphan(t testing.TB, w *watch.Watcher) {
	t.Helper()
	members.EverySnapshot(t, w, func(s *instance.Snapshot) error {
		for _, in := range s.All() {
			if in.View == instance.Orphan {
				return fmt.Errorf("%s is an orphan: %s", in.Key, in.Reason)
			}
		}
		return nil
	})
}

func TestLostLease_MakesOrphan(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 4, nil)
	k := r.keys[0]
	stop := members.NeverWithout(t, r.w, k)
	members.Revoke(t, r.cli, r.ids[k])
	members.WaitFor(t, r.w, k, orphan)
	probes := r.prober.Count(k.Address)
	// It is probed repeatedly.
	testkit.Until(t, members.Soon, func() int { return r.prober.Count(k.Address) }, func(n int) bool { return n >= probes+3 })
	require.Equal(t, 1, r.w.Status().Orphans)
	// The same incarnation registers under another lease.
	rev := members.Put(t, r.cli, r.l.Instance(k), members.Ready, clientv3.WithLease(members.Lease(t, r.cli, 600)))
	in := members.WaitFor(t, r.w, k, atRevision(rev))
	require.True(t, in.View == "" && in.Reason == "" && in.Usable(), "%+v", in)
	stop()
	// A new incarnation ends the orphan state, too.
	k = r.keys[1]
	members.Revoke(t, r.cli, r.ids[k])
	members.WaitFor(t, r.w, k, orphan)
	members.Put(t, r.cli, r.l.Instance(k), `{"id":"B","models":["m"]}`, clientv3.WithLease(members.Lease(t, r.cli, 600)))
	members.WaitFor(t, r.w, k, members.Is(func(in *instance.Instance) bool { return in.Incarnation() == "B" && in.View == "" }))
	testkit.EventuallyEqual(t, members.Soon, func() int { return r.w.Status().Orphans }, 0)
}

func TestOrphan_UnresponsiveRemoved(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 2, nil)
	for _, c := range []struct {
		name string
		k    instance.Key
		make func(k instance.Key)
	}{
		{"refused", r.keys[0], func(k instance.Key) {
			r.prober.Mu.Lock()
			delete(r.prober.Facts, k.Address)
			r.prober.Mu.Unlock()
		}},
		{"another model", r.keys[1], func(k instance.Key) { r.prober.Answer(k.Address, "other") }},
	} {
		members.Revoke(t, r.cli, r.ids[c.k])
		members.WaitFor(t, r.w, c.k, orphan)
		c.make(c.k)
		members.WaitFor(t, r.w, c.k, nil)
	}
}

// Fault matrix, row 30, and other deliberate removals.
func TestDeliberateDelete_NotOrphan(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	r := newOrphanRig(t, 6, func(o *watch.Options) { o.Log = log })
	noOrphan(t, r.w)
	static := members.Prefill("10.0.1.1:8100")
	members.Put(t, r.cli, r.l.Instance(static), members.Ready)
	members.WaitFor(t, r.w, static, members.Usable)
	draining, down, removed := r.keys[1], r.keys[2], r.keys[3]
	for _, c := range []struct {
		name string
		k    instance.Key
		do   func(k instance.Key)
	}{
		{"its lease lives", r.keys[0], func(k instance.Key) { members.Del(t, r.cli, r.l.Instance(k)) }},
		{"static", static, func(k instance.Key) { members.Del(t, r.cli, r.l.Instance(k)) }},
		{"draining", draining, func(k instance.Key) {
			members.Put(t, r.cli, r.l.Instance(k), `{"id":"A","models":["m"],"state":"draining"}`, clientv3.WithLease(r.ids[k]))
			members.Revoke(t, r.cli, r.ids[k])
		}},
		{"down", down, func(k instance.Key) {
			members.Put(t, r.cli, r.l.Instance(k), `{"id":"A","models":["m"],"state":"down"}`, clientv3.WithLease(r.ids[k]))
			members.Revoke(t, r.cli, r.ids[k])
		}},
		{"removed", removed, func(k instance.Key) {
			_, err := store.New(r.cli, r.l, "test").Instances.Remove(t.Context(), k, "x")
			require.NoError(t, err)
		}},
	} {
		c.do(c.k)
		members.WaitFor(t, r.w, c.k, nil)
		logged := func(e *logrus.Entry) bool {
			return e.Level == logrus.InfoLevel && e.Data["instance"] == c.k.String() && strings.HasPrefix(e.Message, "instance left")
		}
		assert.True(t, slices.ContainsFunc(hook.AllEntries(), logged), "%s: no log line that %s has left", c.name, c.k)
	}
	// An instance that is written again right before its lease is revoked
	// is kept: the write counts, not the last published state.
	k := r.keys[4]
	members.Put(t, r.cli, r.l.Instance(k), `{"id":"A","models":["m"],"weight":7}`, clientv3.WithLease(r.ids[k]))
	in := members.WaitFor(t, r.w, k, members.Usable)
	require.True(t, in != nil, "not found")
}

// Several keys share one lease, as for an agent with several ranks. If the lease ends, all are orphans,
// and none is taken as proof that it is valid. If one key is deleted, the others are that proof.
func TestKeysOfOneLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ttl  int64
		end  func(r *orphanRig, id clientv3.LeaseID)
	}{
		{"revoked", 600, func(r *orphanRig, id clientv3.LeaseID) { members.Revoke(t, r.cli, id) }},
		{"run out", 5, func(*orphanRig, clientv3.LeaseID) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newOrphanRig(t, 12, nil)
			shared, alone := r.keys[:3], r.keys[3:6]
			id := members.Lease(t, r.cli, 600)
			for _, k := range alone {
				members.Put(t, r.cli, r.l.Instance(k), members.Ready, clientv3.WithLease(id))
			}
			id = members.Lease(t, r.cli, c.ttl)
			var ops []clientv3.Op
			for _, k := range shared {
				members.NeverWithout(t, r.w, k)
				ops = append(ops, clientv3.OpPut(r.l.Instance(k), members.Ready, clientv3.WithLease(id)))
			}
			_, err := r.cli.Txn(t.Context()).Then(ops...).Commit()
			require.NoError(t, err)
			members.Del(t, r.cli, r.l.Instance(alone[0]))
			members.WaitFor(t, r.w, alone[0], nil)
			c.end(r, id)
			for _, k := range shared {
				members.WaitFor(t, r.w, k, orphan)
			}
			for _, k := range alone[1:] {
				assert.EqualValues(t, "", members.WaitFor(t, r.w, k, members.Usable).View)
			}
		})
	}
}

func TestOrphanGrace_RequiresMajority(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 6, func(o *watch.Options) { o.OrphanGrace = 50 * time.Millisecond })
	// Three of six outlive their grace, however long it has passed. They are lost at once:
	// otherwise, the grace of the first could end while most of the role was registered.
	id := members.Lease(t, r.cli, 600)
	var ops []clientv3.Op
	for _, k := range r.keys[:3] {
		members.NeverWithout(t, r.w, k)
		ops = append(ops, clientv3.OpPut(r.l.Instance(k), members.Ready, clientv3.WithLease(id)))
	}
	_, err := r.cli.Txn(t.Context()).Then(ops...).Commit()
	require.NoError(t, err)
	members.Revoke(t, r.cli, id)
	for _, k := range r.keys[:3] {
		members.WaitFor(t, r.w, k, orphan)
		n := r.prober.Count(k.Address)
		testkit.Until(t, members.Soon, func() int { return r.prober.Count(k.Address) }, func(c int) bool { return c >= n+20 }) // many times the grace
	}
}

// Instances that a list shows as lost with most of their role are held, as after events.
func TestMassLoss_ListHeld(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	direct, l, prober := etcd.Client(t), members.Layout(t), members.NewProber()
	link := testkit.StartLink(t, etcd.Endpoint())
	o := members.Probing(t, prober, "")
	o.OrphanGrace = time.Hour
	var keys []instance.Key
	for i := range 4 {
		k := members.Decode(fmt.Sprintf("10.0.0.%d:8200", i+1))
		prober.Answer(k.Address, "m")
		leased(t, direct, l, k)
		keys = append(keys, k)
	}
	w := members.Watch(t, etcdtest.Client(t, link.Address()), o)
	for _, k := range keys {
		members.WaitFor(t, w, k, members.Usable)
		members.NeverWithout(t, w, k)
	}
	members.WaitState(t, w, watch.Live)
	link.Cut()
	_, err := direct.Delete(t.Context(), "/pd/decode/", clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = direct.Compact(t.Context(), members.Put(t, direct, "/other", ""))
	require.NoError(t, err)
	link.Restore()
	for _, k := range keys {
		members.WaitFor(t, w, k, orphan)
	}
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Held == 4 && s.Orphans == 4 && s.Lists >= 2 })
	// The agents register again.
	for _, k := range keys {
		leased(t, direct, l, k)
	}
	for _, k := range keys {
		members.WaitFor(t, w, k, members.HasView(""))
	}
}

// An orphan is not registered. If an engine's agent was killed and
// runs again with another --role, the role change has no effect.
func TestOrphanEndsRole(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 1, nil)
	prefill, decode := r.keys[0], members.Decode(r.keys[0].Address)
	id := leased(t, r.cli, r.l, decode)
	members.Put(t, r.cli, r.l.Override(decode), `{"v":1,"state":"drain","role":"prefill"}`)
	only := members.Is(func(in *instance.Instance) bool { return in.OnlyRole == instance.Prefill && !in.Usable() })
	members.WaitFor(t, r.w, decode, only)
	members.Revoke(t, r.cli, r.ids[prefill])
	members.Revoke(t, r.cli, id)
	members.WaitFor(t, r.w, prefill, orphan)
	members.WaitFor(t, r.w, decode, members.HasView(instance.Orphan))
	in, _ := r.w.Snapshot().Lookup(decode)
	assert.NoError(t, only(in), "of two orphans: %+v", in)
	leased(t, r.cli, r.l, decode)
	members.WaitFor(t, r.w, decode, members.HasView(""))
	in = members.WaitFor(t, r.w, decode, members.Usable)
	assert.Contains(t, in.Reason, "role prefill has no effect: registered as decode only", "%+v", in)
}

// While etcd is unavailable, an orphan that fails is not picked, but not dropped either.
func TestOrphanWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
	k, other := members.Prefill("10.0.0.1:8100"), members.Prefill("10.0.0.2:8100")
	prober.Answer(k.Address, "m")
	id := leased(t, cli, l, k)
	leased(t, cli, l, other)
	o := members.Probing(t, prober, "")
	o.OrphanGrace = time.Hour
	w := members.Watch(t, cli, o)
	members.WaitFor(t, w, k, members.Usable)
	members.WaitState(t, w, watch.Live)
	members.Revoke(t, cli, id)
	members.WaitFor(t, w, k, orphan)
	etcd.Pause()
	members.WaitState(t, w, watch.Stale)
	prober.Mu.Lock()
	delete(prober.Facts, k.Address)
	prober.Mu.Unlock()
	members.WaitFor(t, w, k, members.HasView(instance.Unverified))
	prober.Answer(k.Address, "m")
	members.WaitFor(t, w, k, orphan)
	etcd.Resume()
	members.WaitState(t, w, watch.Live)
	if in, ok := w.Snapshot().Lookup(k); !ok || orphan(in) != nil {
		t.Fatal(errors.New("the orphan was dropped"))
	}
}
