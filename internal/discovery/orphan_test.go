package discovery_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// leased puts a ready record under a lease of its own.
func leased(t testing.TB, cli *clientv3.Client, l discovery.Layout, k instance.Key) clientv3.LeaseID {
	t.Helper()
	id := lease(t, cli, 600)
	put(t, cli, l.Instance(k), ready, clientv3.WithLease(id))
	return id
}

func revoke(t testing.TB, cli *clientv3.Client, id clientv3.LeaseID) {
	t.Helper()
	if _, err := cli.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// orphanRig is a Watcher with a prober that answers for every instance in it.
type orphanRig struct {
	cli    *clientv3.Client
	l      discovery.Layout
	prober *fakeProber
	w      *discovery.Watcher
	ids    map[instance.Key]clientv3.LeaseID
	keys   []instance.Key
}

func newOrphanRig(t testing.TB, n int, change func(*discovery.WatcherOptions)) *orphanRig {
	t.Helper()
	r := &orphanRig{cli: testkit.StartEtcd(t).Client(t), l: layout(t), prober: newProber(), ids: map[instance.Key]clientv3.LeaseID{}}
	for i := range n {
		k := prefill(fmt.Sprintf("10.0.0.%d:8100", i+1))
		r.keys = append(r.keys, k)
		r.prober.answer(k.Address, "m")
		r.ids[k] = leased(t, r.cli, r.l, k)
	}
	o := probing(t, r.prober, "")
	o.OrphanGrace = time.Hour
	if change != nil {
		change(&o)
	}
	r.w = watch(t, r.cli, o)
	for _, k := range r.keys {
		waitFor(t, r.w, k, usable)
	}
	waitState(t, r.w, discovery.Live)
	return r
}

func orphan(in *instance.Instance) error {
	if in.View != instance.Orphan || !in.Usable() || in.Reason == "" {
		return fmt.Errorf("%s is no orphan that is served: %+v", in.Key, in)
	}
	return nil
}

// noOrphan follows every snapshot until the test ends.
func noOrphan(t testing.TB, w *discovery.Watcher) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			s := w.Snapshot()
			for _, in := range s.All() {
				if in.View == instance.Orphan {
					t.Errorf("%s was an orphan at revision %d: %s", in.Key, s.Revision, in.Reason)
					return
				}
			}
			select {
			case <-s.Changed():
			case <-quit:
				return
			}
		}
	}()
	t.Cleanup(func() { close(quit); <-done })
}

func TestLostLeaseMakesOrphan(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 4, nil)
	k := r.keys[0]
	stop := neverWithout(t, r.w, k)
	revoke(t, r.cli, r.ids[k])
	waitFor(t, r.w, k, orphan)
	probes := r.prober.count(k.Address)
	testkit.Eventually(t, soon, func() error { // it is asked again and again
		if n := r.prober.count(k.Address); n < probes+3 {
			return fmt.Errorf("%d probes", n)
		}
		return nil
	})
	if s := r.w.Status(); s.Orphans != 1 {
		t.Fatalf("status: %+v", s)
	}
	// The same incarnation comes back under another lease.
	rev := put(t, r.cli, r.l.Instance(k), ready, clientv3.WithLease(lease(t, r.cli, 600)))
	in := waitFor(t, r.w, k, atRevision(rev))
	if in.View != "" || in.Reason != "" || !in.Usable() {
		t.Fatalf("%+v", in)
	}
	stop()
	// And a new incarnation ends it too.
	k = r.keys[1]
	revoke(t, r.cli, r.ids[k])
	waitFor(t, r.w, k, orphan)
	put(t, r.cli, r.l.Instance(k), `{"id":"B","models":["m"]}`, clientv3.WithLease(lease(t, r.cli, 600)))
	waitFor(t, r.w, k, func(in *instance.Instance) error {
		if in.Incarnation() != "B" || in.View != "" {
			return fmt.Errorf("%+v", in)
		}
		return nil
	})
	testkit.Eventually(t, soon, func() error {
		if s := r.w.Status(); s.Orphans != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func TestOrphanThatDoesNotAnswerGoes(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 2, nil)
	for _, c := range []struct {
		name string
		k    instance.Key
		make func(k instance.Key)
	}{
		{"refused", r.keys[0], func(k instance.Key) {
			r.prober.mu.Lock()
			delete(r.prober.facts, k.Address)
			r.prober.mu.Unlock()
		}},
		{"another model", r.keys[1], func(k instance.Key) { r.prober.answer(k.Address, "other") }},
	} {
		revoke(t, r.cli, r.ids[c.k])
		waitFor(t, r.w, c.k, orphan)
		c.make(c.k)
		waitFor(t, r.w, c.k, nil)
	}
}

// Fault matrix, row 30, and what else is no accident.
func TestDeliberateDeletesAreNoOrphans(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 6, nil)
	noOrphan(t, r.w)
	static := prefill("10.0.1.1:8100")
	put(t, r.cli, r.l.Instance(static), ready)
	waitFor(t, r.w, static, usable)
	draining, down, removed := r.keys[1], r.keys[2], r.keys[3]
	for _, c := range []struct {
		name string
		k    instance.Key
		do   func(k instance.Key)
	}{
		{"its lease lives", r.keys[0], func(k instance.Key) { del(t, r.cli, r.l.Instance(k)) }},
		{"static", static, func(k instance.Key) { del(t, r.cli, r.l.Instance(k)) }},
		{"draining", draining, func(k instance.Key) {
			put(t, r.cli, r.l.Instance(k), `{"id":"A","models":["m"],"state":"draining"}`, clientv3.WithLease(r.ids[k]))
			revoke(t, r.cli, r.ids[k])
		}},
		{"down", down, func(k instance.Key) {
			put(t, r.cli, r.l.Instance(k), `{"id":"A","models":["m"],"state":"down"}`, clientv3.WithLease(r.ids[k]))
			revoke(t, r.cli, r.ids[k])
		}},
		{"removed", removed, func(k instance.Key) {
			if _, err := discovery.NewStore(r.cli, r.l, "test").Remove(t.Context(), k, "x"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		c.do(c.k)
		waitFor(t, r.w, c.k, nil)
	}
	// Those whose lease was revoked and that were written again right before
	// are kept: the write counts, not what was published last.
	k := r.keys[4]
	put(t, r.cli, r.l.Instance(k), `{"id":"A","models":["m"],"weight":7}`, clientv3.WithLease(r.ids[k]))
	if in := waitFor(t, r.w, k, usable); in == nil {
		t.Fatal("gone")
	}
}

// Several keys under one lease, as an agent has them that registers more than
// one rank: when the lease goes, they all are orphans, and none of them is taken
// for a proof that it lives. When one is deleted the others are that proof.
func TestKeysOfOneLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ttl  int64
		end  func(r *orphanRig, id clientv3.LeaseID)
	}{
		{"revoked", 600, func(r *orphanRig, id clientv3.LeaseID) { revoke(t, r.cli, id) }},
		{"run out", 5, func(*orphanRig, clientv3.LeaseID) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newOrphanRig(t, 12, nil)
			shared, alone := r.keys[:3], r.keys[3:6]
			id := lease(t, r.cli, 600)
			for _, k := range alone {
				put(t, r.cli, r.l.Instance(k), ready, clientv3.WithLease(id))
			}
			id = lease(t, r.cli, c.ttl)
			var ops []clientv3.Op
			for _, k := range shared {
				neverWithout(t, r.w, k)
				ops = append(ops, clientv3.OpPut(r.l.Instance(k), ready, clientv3.WithLease(id)))
			}
			if _, err := r.cli.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
			del(t, r.cli, r.l.Instance(alone[0]))
			waitFor(t, r.w, alone[0], nil)
			c.end(r, id)
			for _, k := range shared {
				waitFor(t, r.w, k, orphan)
			}
			for _, k := range alone[1:] {
				if in := waitFor(t, r.w, k, usable); in.View != "" {
					t.Errorf("%+v", in)
				}
			}
		})
	}
}

func TestRemovalEndsAnOrphanAtOnce(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 3, nil)
	k := r.keys[0]
	revoke(t, r.cli, r.ids[k])
	waitFor(t, r.w, k, orphan)
	put(t, r.cli, r.l.Override(k), `{"v":1,"state":"removed"}`)
	waitFor(t, r.w, k, nil)
	if n := len(r.w.Snapshot().Usable(instance.Prefill)); n != 2 {
		t.Fatalf("%d usable", n)
	}
}

func TestGraceEndsOnlyWhileMostAreRegistered(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 6, func(o *discovery.WatcherOptions) { o.OrphanGrace = 50 * time.Millisecond })
	// Three of six: they outlive their grace, however long. They go at once: one
	// after the other, the first might have had its grace while most were there.
	id := lease(t, r.cli, 600)
	var ops []clientv3.Op
	for _, k := range r.keys[:3] {
		neverWithout(t, r.w, k)
		ops = append(ops, clientv3.OpPut(r.l.Instance(k), ready, clientv3.WithLease(id)))
	}
	if _, err := r.cli.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
	revoke(t, r.cli, id)
	for _, k := range r.keys[:3] {
		waitFor(t, r.w, k, orphan)
		n := r.prober.count(k.Address)
		testkit.Eventually(t, soon, func() error { // many graces
			if c := r.prober.count(k.Address); c < n+20 {
				return fmt.Errorf("%d probes", c)
			}
			return nil
		})
	}
}

func TestGraceEnds(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 6, func(o *discovery.WatcherOptions) { o.OrphanGrace = time.Second })
	for _, k := range r.keys[:2] { // two thirds stay
		revoke(t, r.cli, r.ids[k])
	}
	for _, k := range r.keys[:2] {
		waitFor(t, r.w, k, nil)
		if r.prober.count(k.Address) == 0 {
			t.Errorf("%s was never asked", k)
		}
	}
	if n := len(r.w.Snapshot().Usable(instance.Prefill)); n != 4 {
		t.Fatalf("%d usable", n)
	}
}

// Somebody deletes a whole role while its agents live.
func TestMassDeletionIsHeld(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t, 5, nil)
	for _, k := range r.keys {
		neverWithout(t, r.w, k)
	}
	if _, err := r.cli.Delete(t.Context(), "/pd/prefill/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	for _, k := range r.keys {
		waitFor(t, r.w, k, orphan)
	}
	testkit.Eventually(t, soon, func() error {
		if s := r.w.Status(); s.Held != 5 || s.Orphans != 5 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	// The agents put their keys back.
	for _, k := range r.keys {
		put(t, r.cli, r.l.Instance(k), ready, clientv3.WithLease(r.ids[k]))
	}
	for _, k := range r.keys {
		waitFor(t, r.w, k, hasView(""))
	}
}

// A list that has lost most of a role counts no more than the events would.
func TestListWithMassLossIsHeld(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	direct, l, prober := etcd.Client(t), layout(t), newProber()
	link := testkit.StartLink(t, etcd.Endpoint())
	o := probing(t, prober, "")
	o.OrphanGrace = time.Hour
	var keys []instance.Key
	for i := range 4 {
		k := decode(fmt.Sprintf("10.0.0.%d:8200", i+1))
		prober.answer(k.Address, "m")
		leased(t, direct, l, k)
		keys = append(keys, k)
	}
	w := watch(t, testkit.Client(t, link.Address()), o)
	for _, k := range keys {
		waitFor(t, w, k, usable)
		neverWithout(t, w, k)
	}
	waitState(t, w, discovery.Live)
	link.Cut()
	if _, err := direct.Delete(t.Context(), "/pd/decode/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Compact(t.Context(), put(t, direct, "/other", "")); err != nil {
		t.Fatal(err)
	}
	link.Restore()
	for _, k := range keys {
		waitFor(t, w, k, orphan)
	}
	testkit.Eventually(t, soon, func() error {
		if s := w.Status(); s.Held != 4 || s.Lists < 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// While etcd is away an orphan that fails is not picked, but not forgotten.
func TestOrphanWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcdProcess(t)
	cli, l, prober := dial(t, etcd.Endpoint()), layout(t), newProber()
	k, other := prefill("10.0.0.1:8100"), prefill("10.0.0.2:8100")
	prober.answer(k.Address, "m")
	id := leased(t, cli, l, k)
	leased(t, cli, l, other)
	o := probing(t, prober, "")
	o.OrphanGrace = time.Hour
	w := watch(t, cli, o)
	waitFor(t, w, k, usable)
	waitState(t, w, discovery.Live)
	revoke(t, cli, id)
	waitFor(t, w, k, orphan)
	etcd.Pause()
	waitState(t, w, discovery.Stale)
	prober.mu.Lock()
	delete(prober.facts, k.Address)
	prober.mu.Unlock()
	waitFor(t, w, k, hasView(instance.Unverified))
	prober.answer(k.Address, "m")
	waitFor(t, w, k, orphan)
	etcd.Resume()
	waitState(t, w, discovery.Live)
	if in, ok := w.Snapshot().Lookup(k); !ok || orphan(in) != nil {
		t.Fatal(errors.New("the orphan is gone"))
	}
}
