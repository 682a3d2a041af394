package watch_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Keys that are not saved (a pending add, an invalid value) do not suggest another
// store. After a restart, the changes made meanwhile apply, and no key is kept.
func TestRestart_UnsavedEntries(t *testing.T) {
	t.Parallel()
	odd := members.Decode("10.0.0.77:8200")
	for name, write := range map[string]func(t *testing.T, r *diskRig, store *store.Store){
		"nothing": func(*testing.T, *diskRig, *store.Store) {},
		"a pending add": func(t *testing.T, _ *diskRig, store *store.Store) {
			t.Helper()
			_, err := store.Instances.AddPending(t.Context(), odd, schema.PendingAdd{}, 0, "")
			require.NoError(t, err)
		},
		"a bad value": func(t *testing.T, r *diskRig, _ *store.Store) {
			t.Helper()
			members.Put(t, members.Dial(t, r.etcd.Endpoint()), r.l.Instance(odd), "{nonsense")
		},
		"a bad address": func(t *testing.T, r *diskRig, _ *store.Store) {
			t.Helper()
			members.Put(t, members.Dial(t, r.etcd.Endpoint()), r.l.Instance(members.Decode("nonsense")), "")
		},
		"a bad override": func(t *testing.T, r *diskRig, _ *store.Store) {
			t.Helper()
			members.Put(t, members.Dial(t, r.etcd.Endpoint()), r.l.Override(odd), "{nonsense")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDiskRig(t)
			cli := members.Dial(t, r.etcd.Endpoint())
			st := store.New(cli, r.l, "test")
			write(t, r, st)
			later := members.Decode("10.0.0.78:8200")
			r.prober.Answer(later.Address, "m")
			members.Put(t, cli, r.l.Instance(later), members.Ready)
			w, stop := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
			members.WaitState(t, w, watch.Live)
			members.WaitFor(t, w, later, members.Usable)
			stop()
			members.Del(t, cli, r.l.Instance(r.static))
			if out, err := st.Instances.Add(t.Context(), r.x, instance.Record{Models: []string{"m"}}, ""); err != nil || out != store.Added {
				t.Fatal(out, err)
			}
			w, _ = runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
			members.WaitState(t, w, watch.Live)
			members.WaitFor(t, w, r.x, members.Usable)
			members.WaitFor(t, w, r.static, nil)
			if s := w.Status(); s.Epochs != 0 || len(s.Kept) != 0 {
				t.Errorf("the same etcd is taken for another: %d times, kept %v", s.Epochs, s.Kept)
			}
		})
	}
}

// A removal that is kept from a wiped store ends with the next
// add, even for a proxy that was not running then.
func TestAddWhileDown_LiftsKeptRemoval(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	r.etcd.Wipe()
	r.etcd.Restart()
	st := store.New(members.Dial(t, r.etcd.Endpoint()), r.l, "test")
	testkit.Eventually(t, members.Soon, func() error { return st.EnsureSchema(t.Context()) })
	w, stop := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitState(t, w, watch.Live)
	// It is live before the contents of etcd are published, and uses the instance from disk.
	members.WaitStatus(t, w, func(s watch.Status) bool { return len(s.Kept) == 5 })
	members.WaitFor(t, w, r.static, members.Usable)
	stop()
	if out, err := st.Instances.Add(t.Context(), r.x, instance.Record{Models: []string{"m"}}, "again"); err != nil || out != store.Added {
		t.Fatal(out, err)
	}
	w, _ = runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitFor(t, w, r.x, members.Usable)
	members.WaitState(t, w, watch.Live)
	s := w.Status()
	assert.True(t, s.Epochs == 0 && len(s.Kept) == 4, "epochs %d, kept %v", s.Epochs, s.Kept)
}

// A pending add works also for an instance that is kept although the new store does not have it.
func TestPendingAdd_KeptInstance(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	w, _ := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitState(t, w, watch.Live)
	r.etcd.Wipe()
	r.etcd.Restart()
	cli := members.Dial(t, r.etcd.Endpoint())
	st := store.New(cli, r.l, "test")
	testkit.Eventually(t, members.Soon, func() error { return st.EnsureSchema(t.Context()) })
	testkit.EventuallyEqual(t, members.Soon, func() int { return len(w.Status().Kept) }, 5,
		"the wipe has not been seen")
	if out, err := st.Instances.AddPending(t.Context(), r.silent, schema.PendingAdd{}, 0, "again"); err != nil || out != store.Waiting {
		t.Fatal(out, err)
	}
	testkit.EventuallyTrue(t, members.Soon, func() bool { return w.Snapshot().Waiting(r.silent) },
		"the add has not been seen")
	r.prober.Answer(r.silent.Address, "m")
	testkit.EventuallyTrue(t, members.Soon, func() bool { return members.RawKey(t, cli, r.silent) != nil },
		"it answers and is not in etcd")
	members.WaitFor(t, w, r.silent, members.Usable)
}
