package watch_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// runWatcher starts a Watcher; stop ends it and waits until everything is saved.
func runWatcher(t testing.TB, cli *clientv3.Client, o watch.Options) (w *watch.Watcher, stop func()) {
	t.Helper()
	o.Writer = store.New(cli, o.Layout, "watcher").Watch
	w = watch.New(cli, o)
	stop = background.Start(context.Background(), w.Run)
	t.Cleanup(stop)
	return w, stop
}

// diskRig is a fleet that an earlier process of a proxy has seen and saved.
type diskRig struct {
	etcd                                *etcdtest.Server
	l                                   schema.Layout
	prober                              *members.Prober
	o                                   watch.Options
	static, silent, bare, held, root, x instance.Key // root: model known by its root only; x: removed
}

func newDiskRig(t testing.TB) *diskRig {
	t.Helper()
	r := &diskRig{
		etcd: etcdtest.Start(t), l: members.Layout(t), prober: members.NewProber(),
		static: members.Prefill("10.0.0.1:8100"), silent: members.Prefill("10.0.0.2:8100"), x: members.Prefill("10.0.0.3:8100"),
		held: members.Decode("10.0.0.4:8200"), bare: members.Decode("10.0.0.5:8200"), root: members.Prefill("10.0.0.6:8100"),
	}
	cli := members.Dial(t, r.etcd.Endpoint())
	for _, k := range []instance.Key{r.static, r.x, r.held, r.bare} {
		r.prober.Answer(k.Address, "m")
	}
	r.prober.Set(r.root.Address, instance.Facts{Models: []string{"chat"}, Roots: []string{"/models/m"}})
	store := store.New(cli, r.l, "test")
	for _, k := range []instance.Key{r.static, r.silent, r.x} {
		_, err := store.Instances.Add(t.Context(), k, instance.Record{Models: []string{"m"}}, "")
		require.NoError(t, err)
	}
	_, err := store.Instances.Add(t.Context(), r.root, instance.Record{Models: []string{"chat"}}, "")
	require.NoError(t, err)
	members.Put(t, cli, r.l.Instance(r.bare), "")
	leased(t, cli, r.l, r.held)
	r.o = members.Probing(t, r.prober, "m")
	r.o.OrphanGrace = time.Hour
	r.o.StateDir = filepath.Join(t.TempDir(), "deep", "proxy-1")
	w, stop := runWatcher(t, cli, r.o)
	for _, k := range []instance.Key{r.static, r.silent, r.x, r.held, r.bare, r.root} {
		members.WaitFor(t, w, k, members.Usable)
	}
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Saves != 0 && s.Unsaved == "" && !s.Loaded })
	_, err = store.Instances.Remove(t.Context(), r.x, "broken")
	require.NoError(t, err)
	members.WaitFor(t, w, r.x, nil)
	stop() // saves the changes of the last second
	return r
}

// Fault matrix, row 14.
func TestStartFromDisk(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	info, err := os.Stat(filepath.Join(r.o.StateDir, "snapshot.json"))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	r.etcd.Kill()
	log, hook := test.NewNullLogger()
	r.o.Log = log
	w, _ := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitReady(t, w)
	for _, e := range hook.AllEntries() {
		if n, ok := e.Data["instances"]; ok && n != 5 { // the override of the removed one is saved, too
			t.Errorf("%d instances: %s", n, e.Message)
		}
	}
	for _, k := range []instance.Key{r.static, r.held, r.bare, r.root} {
		assert.NotEqual(t, "", members.WaitFor(t, w, k, members.Usable).Reason,
			"%s does not say where it is known from", k)
	}
	members.WaitFor(t, w, r.silent, members.HasView(instance.Unverified))
	in, ok := w.Snapshot().Lookup(r.x)
	require.False(t, ok, "a removed instance is back: %+v", in)
	s := w.Status()
	require.True(t, s.Loaded && s.Lists == 0 && s.State != watch.Live, "status: %+v", s)
	members.NeverWithout(t, w, r.static)
	members.NeverWithout(t, w, r.held)
	// Etcd returns with its data: the membership is as before.
	r.etcd.Restart()
	members.WaitState(t, w, watch.Live)
	for _, k := range []instance.Key{r.static, r.silent, r.held, r.bare, r.root} {
		in := members.WaitFor(t, w, k, members.Usable)
		assert.EqualValues(t, "", in.View)
		assert.Equal(t, "", in.Reason)
	}
	s = w.Status()
	require.True(t, s.Epochs == 0 && s.Orphans == 0 && len(s.Kept) == 0, "status: %+v", s)
}

// An instance that was deleted while the proxy did not run is not restored.
func TestDeletedWhileNotRunning(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	cli := members.Dial(t, r.etcd.Endpoint())
	members.Del(t, cli, r.l.Instance(r.static))
	members.Del(t, cli, r.l.Instance(r.held))
	w, _ := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitState(t, w, watch.Live)
	members.WaitFor(t, w, r.static, nil)
	members.WaitFor(t, w, r.held, nil)
	members.WaitFor(t, w, r.silent, members.Usable)
}

// Fault matrix, row 29, with a restart of the proxy: it finds a wiped etcd.
func TestWipedWhileNotRunning(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	r.etcd.Wipe()
	r.etcd.Restart()
	cli := members.Dial(t, r.etcd.Endpoint())
	leased(t, cli, r.l, r.x) // its agent does not know about the removal
	for range 2 {            // and after one more restart
		w, stop := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
		members.WaitState(t, w, watch.Live)
		members.WaitFor(t, w, r.static, members.Usable)
		members.WaitFor(t, w, r.bare, members.Usable)
		members.WaitFor(t, w, r.root, members.Usable)
		members.WaitFor(t, w, r.held, orphan)
		members.WaitFor(t, w, r.silent, members.HasView(instance.Unverified))
		members.WaitFor(t, w, r.x, members.Is(func(in *instance.Instance) bool { return in.Intent == instance.Removed }))
		require.Len(t, w.Status().Kept, 5)
		stop()
	}
	// It follows all orders to forget that it has missed, and the last order.
	st := store.New(cli, r.l, "test")
	order := func(do string, k instance.Key) {
		t.Helper()
		require.NoError(t, st.Kept.Order(t.Context(), do, []instance.Key{k}, ""))
	}
	order(schema.OrderRestore, r.silent) // may be deleted since
	order(schema.OrderForget, r.static)
	order(schema.OrderForget, r.bare)
	order(schema.OrderRestore, r.root)
	w, _ := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	testkit.EventuallyEqual(t, members.Soon, func() string { return fmt.Sprint(w.Status().State, w.Status().Kept) },
		fmt.Sprint(watch.Live, []string{"override/" + r.x.String(), r.silent.String()}))
}

// A removed node may still register itself. After a restart, the proxy
// recognizes the same store: a drain that was lifted meanwhile has ended.
func TestRemovedInstanceWithRecordAfterRestart(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	cli := members.Dial(t, r.etcd.Endpoint())
	intent := func(want instance.Intent) func(*instance.Instance) error {
		return members.Is(func(in *instance.Instance) bool { return in.Intent == want })
	}
	leased(t, cli, r.l, r.x)
	members.Put(t, cli, r.l.Override(r.static), `{"v":1,"state":"drain"}`)
	w, stop := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitFor(t, w, r.x, intent(instance.Removed))
	members.WaitFor(t, w, r.static, intent(instance.Drain))
	stop()
	members.Del(t, cli, r.l.Override(r.static))
	w, _ = runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
	members.WaitState(t, w, watch.Live)
	s := w.Status()
	require.True(t, s.Epochs == 0 && len(s.Kept) == 0, "status: %+v", s)
	members.WaitFor(t, w, r.static, members.Usable)
	members.WaitFor(t, w, r.x, intent(instance.Removed))
}

// An invalid value is reported also after a restart of the proxy, which has the last good one from disk.
func TestInvalidValueAfterRestart(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	cli := members.Dial(t, r.etcd.Endpoint())
	members.Put(t, cli, r.l.Instance(r.static), "{")
	// A slow publication delays the next one, unless that is of a list.
	r.o.Prepare = func(*instance.Snapshot) { time.Sleep(20 * time.Millisecond) }
	for process := range 3 { // the second and third process have the value from disk
		r.etcd.Pause()
		w, stop := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), r.o)
		if process > 0 {
			members.WaitFor(t, w, r.static, members.Usable)
		}
		r.etcd.Resume()
		members.WaitState(t, w, watch.Live)
		in := members.WaitFor(t, w, r.static, members.Usable)
		if s := w.Status(); s.Rejected != 1 || s.Epochs != 0 || !strings.Contains(in.Reason, "the last good value stays active") {
			t.Errorf("%d rejected, %d epochs, reason %q", s.Rejected, s.Epochs, in.Reason)
		}
		stop()
	}
}

func TestSnapshot_UnusableIgnored(t *testing.T) {
	t.Parallel()
	r := newDiskRig(t)
	r.etcd.Kill()
	path := filepath.Join(r.o.StateDir, "snapshot.json")
	good := testkit.ReadFile(t, path)
	other, err := schema.NewLayout("/pd2")
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		file  []byte
		setup func(*watch.Options)
		why   string
	}{
		{"cut", good[:len(good)/2], nil, "not readable"},
		{"empty", nil, nil, "not readable"},
		{"changed", bytes.Replace(good, []byte("10.0.0.1:8100"), []byte("10.6.6.6:8100"), 1), nil, "checksum"},
		{"another prefix", good, func(o *watch.Options) { o.Layout = other }, "prefix"},
		{"old", good, func(o *watch.Options) { o.StateAge = time.Nanosecond }, "too old"},
	} {
		require.NoError(t, os.WriteFile(path, c.file, 0o600))
		o := r.o
		if c.setup != nil {
			c.setup(&o)
		}
		log, hook := test.NewNullLogger()
		o.Log = log
		w, stop := runWatcher(t, members.Dial(t, r.etcd.Endpoint()), o)
		members.WaitStatus(t, w, func(s watch.Status) bool { return s.LastError != "" && s.State == watch.Cold })
		stop()
		lines := 0
		for _, e := range hook.AllEntries() {
			if e.Level == logrus.WarnLevel && strings.Contains(e.Message, "on disk") {
				lines++
				assert.Contains(t, e.Message, c.why, "%s: %s", c.name, e.Message)
			}
		}
		assert.Equal(t, 1, lines)
		assert.Len(t, w.Snapshot().All(), 0)
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, c.file) {
			t.Errorf("%s: the file was written although nothing is known (%v)", c.name, err)
		}
	}
}

// A state directory that cannot be written is shown in the status until it can be; nothing else is affected.
func TestUnwritableStateDir(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	file := filepath.Join(t.TempDir(), "file")
	testkit.WriteFile(t, file, "")
	o := members.WatcherOptions(t)
	o.StateDir = filepath.Join(file, "below")
	w := members.Watch(t, cli, o)
	members.Put(t, cli, l.Instance(members.Prefill("10.0.0.1:8100")), members.Ready)
	members.WaitFor(t, w, members.Prefill("10.0.0.1:8100"), members.Usable)
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Unsaved != "" && s.State == watch.Live })
	require.NoError(t, os.Remove(file))
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Unsaved == "" && s.Saves > 0 })
}

// Changes that could not be saved are saved when the process ends.
func TestSave_AtExitAfterFailure(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	o := members.WatcherOptions(t)
	o.StateDir = filepath.Join(t.TempDir(), "state")
	testkit.WriteFile(t, o.StateDir, "")
	members.Put(t, cli, l.Instance(members.Prefill("10.0.0.1:8100")), members.Ready)
	w, stop := runWatcher(t, cli, o)
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Unsaved != "" })
	require.NoError(t, os.Remove(o.StateDir))
	stop()
	saved, err := os.ReadFile(filepath.Join(o.StateDir, "snapshot.json"))
	assert.True(t, err == nil && bytes.Contains(saved, []byte("10.0.0.1:8100")), "%s, %v", saved, err)
}
