package discovery_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// Fault matrix, rows 11 and 12: a wiped store, which has passed the old
// revision or not, while statics, a removal and a lease are in force.
func TestWipedStore(t *testing.T) {
	t.Parallel()
	for _, past := range []bool{false, true} {
		t.Run(fmt.Sprintf("passed=%t", past), func(t *testing.T) {
			t.Parallel()
			etcd := testkit.StartEtcdProcess(t)
			cli, l, prober := dial(t, etcd.Endpoint()), layout(t), newProber()
			link := testkit.StartLink(t, etcd.Endpoint())
			static, held, out, fresh := prefill("10.0.0.1:8100"), decode("10.0.0.2:8200"), prefill("10.0.0.3:8100"), prefill("10.0.0.4:8100")
			for _, k := range []instance.Key{static, held, out} {
				prober.answer(k.Address, "m")
			}
			store := discovery.NewStore(cli, l, "test")
			for _, k := range []instance.Key{static, out} {
				if _, err := store.Add(t.Context(), k, instance.Record{Models: []string{"m"}}, "x"); err != nil {
					t.Fatal(err)
				}
			}
			leased(t, cli, l, held)
			if _, err := store.Remove(t.Context(), out, "broken"); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				put(t, cli, "/other", "")
			}
			o := auditing(t, prober)
			o.OrphanGrace = time.Hour
			w := watch(t, dial(t, link.Address()), o)
			waitFor(t, w, static, usable)
			waitFor(t, w, held, usable)
			waitState(t, w, discovery.Live)
			neverWithout(t, w, static)
			neverWithout(t, w, held)
			if past {
				link.Cut()
			}
			etcd.Wipe()
			etcd.Restart()
			direct := dial(t, etcd.Endpoint())
			put(t, direct, l.Instance(fresh), ready)
			// The agent of the removed one finds no removal in the new store.
			put(t, direct, l.Instance(out), ready, clientv3.WithLease(lease(t, direct, 600)))
			if past {
				for range 300 {
					put(t, direct, "/other", "")
				}
				link.Restore()
			}
			waitFor(t, w, fresh, usable)
			waitFor(t, w, held, orphan)
			in := waitFor(t, w, out, func(in *instance.Instance) error {
				if in.Intent != instance.Removed || in.Usable() {
					return fmt.Errorf("%+v", in)
				}
				return nil
			})
			if in.Reason == "" {
				t.Error("no reason")
			}
			if s := w.Status(); s.Epochs == 0 || !slices.Equal(s.Kept, []string{"override/prefill/" + out.Address, "prefill/" + static.Address}) {
				t.Fatalf("status: %+v", s)
			}
			if in := waitFor(t, w, static, usable); in.View != "" || in.Reason == "" {
				t.Fatalf("%+v", in)
			}
			// The operator has it all written back, by every proxy.
			second := watch(t, dial(t, etcd.Endpoint()), o)
			if err := discovery.NewStore(direct, l, "test").Restore(t.Context(), []instance.Key{static}, "go on"); err != nil {
				t.Fatal(err)
			}
			in = waitFor(t, second, static, usable)
			waitFor(t, w, static, func(now *instance.Instance) error {
				if now.Reason != "" || !now.Static() || now.ModRevision != in.ModRevision {
					return fmt.Errorf("%+v", now)
				}
				return nil
			})
			if s := w.Status(); len(s.Kept) != 1 {
				t.Fatalf("status: %+v", s)
			}
			if in := waitFor(t, second, out, usable); in.Intent != "" { // nobody has told it
				t.Fatalf("%+v", in)
			}
			if err := discovery.NewStore(direct, l, "test").Restore(t.Context(), nil, "all"); err != nil {
				t.Fatal(err)
			}
			waitFor(t, second, out, func(in *instance.Instance) error {
				if in.Intent != instance.Removed {
					return fmt.Errorf("%+v", in)
				}
				return nil
			})
			testkit.Eventually(t, soon, func() error {
				if s := w.Status(); len(s.Kept) != 0 {
					return fmt.Errorf("%+v", s)
				}
				return nil
			})
			// Whoever adds it again in the new store means it.
			if _, err := discovery.NewStore(direct, l, "test").Remove(t.Context(), out, ""); err != nil {
				t.Fatal(err)
			}
			if _, err := discovery.NewStore(direct, l, "test").Add(t.Context(), out, instance.Record{Models: []string{"m"}}, ""); err != nil {
				t.Fatal(err)
			}
			waitFor(t, w, out, usable)
		})
	}
}

// An intent for a time is gone together with its store: kept, it would have no end, and
// restored, it would stand in the new one for ever.
func TestIntentForATimeIsNotKept(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcdProcess(t)
	cli, l, prober := dial(t, etcd.Endpoint()), layout(t), newProber()
	a, b := decode("10.0.0.1:8200"), decode("10.0.0.2:8200")
	for _, k := range []instance.Key{a, b} {
		prober.answer(k.Address, "m")
		put(t, cli, l.Instance(k), ready)
	}
	store := discovery.NewStore(cli, l, "test")
	if _, err := store.Intend(t.Context(), a, instance.Drain, discovery.Wish{For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Intend(t.Context(), b, instance.Drain, discovery.Wish{}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		put(t, cli, "/other", "")
	}
	w := watch(t, cli, probing(t, prober, ""))
	intent := func(k instance.Key, want instance.Intent) {
		t.Helper()
		waitFor(t, w, k, func(in *instance.Instance) error {
			if in.Intent != want {
				return fmt.Errorf("%+v", in)
			}
			return nil
		})
	}
	intent(a, instance.Drain)
	intent(b, instance.Drain)
	waitState(t, w, discovery.Live)
	etcd.Wipe()
	etcd.Restart()
	testkit.Eventually(t, soon, func() error {
		s := w.Status()
		if want := []string{"decode/" + a.Address, "decode/" + b.Address, "override/decode/" + b.Address}; !slices.Equal(s.Kept, want) {
			return fmt.Errorf("kept %v, want %v", s.Kept, want)
		}
		return nil
	})
	intent(a, "")
	intent(b, instance.Drain)
}

func TestForgetWhatAFormerStoreSaid(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcdProcess(t)
	cli, l, prober := dial(t, etcd.Endpoint()), layout(t), newProber()
	a, b, out := prefill("10.0.0.1:8100"), prefill("10.0.0.2:8100"), decode("10.0.0.3:8200")
	for _, k := range []instance.Key{a, b} {
		put(t, cli, l.Instance(k), ready)
	}
	put(t, cli, l.Override(out), `{"v":1,"state":"removed"}`)
	for range 50 {
		put(t, cli, "/other", "")
	}
	w := watch(t, cli, probing(t, prober, ""))
	waitFor(t, w, b, usable)
	waitState(t, w, discovery.Live)
	neverWithout(t, w, b)
	etcd.Wipe()
	etcd.Restart()
	testkit.Eventually(t, soon, func() error {
		if s := w.Status(); len(s.Kept) != 3 || s.State != discovery.Live {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	store := discovery.NewStore(dial(t, etcd.Endpoint()), l, "test")
	if err := store.Forget(t.Context(), []instance.Key{a}, "gone with the rack"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, w, a, nil)
	if s := w.Status(); len(s.Kept) != 2 {
		t.Fatalf("%+v", s)
	}
	if err := store.Forget(t.Context(), []instance.Key{out}, ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, soon, func() error {
		if s := w.Status(); len(s.Kept) != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	log, err := store.AuditLog(t.Context(), 0)
	if err != nil || len(log) != 2 || log[1].What != "forget" || log[1].Address != a.Address || log[1].Why != "gone with the rack" {
		t.Fatalf("%+v, %v", log, err)
	}
	// Nothing stands in the store that would do more than was asked.
	if s, err := store.Snapshot(t.Context()); err != nil || len(s.All()) != 0 {
		t.Fatalf("%v, %v", s.All(), err)
	}
}
