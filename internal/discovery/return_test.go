package discovery_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// What the disk does not hold (a pending add, a value that nobody can read) is no
// sign of another store: after a restart what was done meanwhile counts, and nothing
// is kept of it.
func TestRestartBesideWhatIsNotSaved(t *testing.T) {
	t.Parallel()
	odd := decode("10.0.0.77:8200")
	for name, write := range map[string]func(t *testing.T, r *diskRig, store *discovery.Store){
		"nothing": func(*testing.T, *diskRig, *discovery.Store) {},
		"a pending add": func(t *testing.T, _ *diskRig, store *discovery.Store) {
			t.Helper()
			if _, err := store.AddPending(t.Context(), odd, discovery.PendingAdd{}, 0, ""); err != nil {
				t.Fatal(err)
			}
		},
		"a bad value": func(t *testing.T, r *diskRig, _ *discovery.Store) {
			t.Helper()
			put(t, dial(t, r.etcd.Endpoint()), r.l.Instance(odd), "{nonsense")
		},
		"a bad address": func(t *testing.T, r *diskRig, _ *discovery.Store) {
			t.Helper()
			put(t, dial(t, r.etcd.Endpoint()), r.l.Instance(decode("nonsense")), "")
		},
		"a bad override": func(t *testing.T, r *diskRig, _ *discovery.Store) {
			t.Helper()
			put(t, dial(t, r.etcd.Endpoint()), r.l.Override(odd), "{nonsense")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDiskRig(t)
			cli := dial(t, r.etcd.Endpoint())
			store := discovery.NewStore(cli, r.l, "test")
			write(t, r, store)
			later := decode("10.0.0.78:8200")
			r.prober.answer(later.Address, "m")
			put(t, cli, r.l.Instance(later), ready)
			w, stop := runWatcher(t, dial(t, r.etcd.Endpoint()), r.o)
			waitState(t, w, discovery.Live)
			waitFor(t, w, later, usable)
			stop()
			del(t, cli, r.l.Instance(r.static))
			if out, err := store.Add(t.Context(), r.x, instance.Record{Models: []string{"m"}}, ""); err != nil || out != discovery.Added {
				t.Fatal(out, err)
			}
			w, _ = runWatcher(t, dial(t, r.etcd.Endpoint()), r.o)
			waitState(t, w, discovery.Live)
			waitFor(t, w, r.x, usable)
			waitFor(t, w, r.static, nil)
			if s := w.Status(); s.Epochs != 0 || len(s.Kept) != 0 {
				t.Errorf("the same etcd is taken for another: %d times, kept %v", s.Epochs, s.Kept)
			}
		})
	}
}

// A removal that is kept from a wiped store ends with the next add, also for a proxy
// that was not watching then.
func TestAddWhileAwayLiftsKeptRemoval(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	r.etcd.Wipe()
	r.etcd.Restart()
	store := discovery.NewStore(dial(t, r.etcd.Endpoint()), r.l, "test")
	testkit.Eventually(t, soon, func() error { return store.EnsureSchema(t.Context()) })
	w, stop := runWatcher(t, dial(t, r.etcd.Endpoint()), r.o)
	waitState(t, w, discovery.Live)
	// It is live before what etcd holds has been published, and usable from the disk.
	testkit.Eventually(t, soon, func() error {
		if s := w.Status(); len(s.Kept) != 4 {
			return fmt.Errorf("kept %v", s.Kept)
		}
		return nil
	})
	waitFor(t, w, r.static, usable)
	stop()
	if out, err := store.Add(t.Context(), r.x, instance.Record{Models: []string{"m"}}, "again"); err != nil || out != discovery.Added {
		t.Fatal(out, err)
	}
	w, _ = runWatcher(t, dial(t, r.etcd.Endpoint()), r.o)
	waitFor(t, w, r.x, usable)
	waitState(t, w, discovery.Live)
	if s := w.Status(); s.Epochs != 0 || len(s.Kept) != 3 {
		t.Errorf("epochs %d, kept %v", s.Epochs, s.Kept)
	}
}

// An instance that is served although the new store does not have it can be added
// there with a wait, like any other.
func TestPendingAddOfWhatIsKept(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	w, _ := runWatcher(t, dial(t, r.etcd.Endpoint()), r.o)
	waitState(t, w, discovery.Live)
	r.etcd.Wipe()
	r.etcd.Restart()
	cli := dial(t, r.etcd.Endpoint())
	store := discovery.NewStore(cli, r.l, "test")
	testkit.Eventually(t, soon, func() error { return store.EnsureSchema(t.Context()) })
	testkit.Eventually(t, soon, func() error {
		if len(w.Status().Kept) != 4 {
			return errors.New("the wipe has not been seen")
		}
		return nil
	})
	if out, err := store.AddPending(t.Context(), r.silent, discovery.PendingAdd{}, 0, "again"); err != nil || out != discovery.Waiting {
		t.Fatal(out, err)
	}
	testkit.Eventually(t, soon, func() error {
		if !w.Snapshot().Waiting(r.silent) {
			return errors.New("the add has not been seen")
		}
		return nil
	})
	r.prober.answer(r.silent.Address, "m")
	testkit.Eventually(t, soon, func() error {
		if rawKey(t, cli, r.silent) == nil {
			return errors.New("it answers and is not in etcd")
		}
		return nil
	})
	waitFor(t, w, r.silent, usable)
}
