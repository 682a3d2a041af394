package watch_test

import (
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

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Fault matrix, rows 11 and 12: a wiped store, with a revision below or above
// the former one, while static instances, a removal and a lease exist.
func TestWipedStore(t *testing.T) {
	t.Parallel()
	for _, past := range []bool{false, true} {
		t.Run(fmt.Sprintf("passed=%t", past), func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t)
			cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
			link := testkit.StartLink(t, etcd.Endpoint())
			static, held, out, fresh := members.Prefill("10.0.0.1:8100"), members.Decode("10.0.0.2:8200"), members.Prefill("10.0.0.3:8100"), members.Prefill("10.0.0.4:8100")
			bare := members.Prefill("10.0.0.5:8100")
			for _, k := range []instance.Key{static, held, out, bare} {
				prober.Answer(k.Address, "m")
			}
			st := store.New(cli, l, "test")
			for _, k := range []instance.Key{static, out} {
				_, err := st.Instances.Add(t.Context(), k, instance.Record{Models: []string{"m"}}, "x")
				require.NoError(t, err)
			}
			members.Put(t, cli, l.Instance(bare), "")
			leased(t, cli, l, held)
			_, err := st.Instances.Remove(t.Context(), out, "broken")
			require.NoError(t, err)
			for range 100 {
				members.Put(t, cli, "/other", "")
			}
			o := auditing(t, prober)
			o.OrphanGrace = time.Hour
			w := members.Watch(t, members.Dial(t, link.Address()), o)
			members.WaitFor(t, w, static, members.Usable)
			members.WaitFor(t, w, held, members.Usable)
			members.WaitFor(t, w, bare, members.Usable)
			members.WaitState(t, w, watch.Live)
			members.NeverWithout(t, w, static)
			members.NeverWithout(t, w, held)
			if past {
				link.Cut()
			}
			etcd.Wipe()
			etcd.Restart()
			direct := members.Dial(t, etcd.Endpoint())
			members.Put(t, direct, l.Instance(fresh), members.Ready)
			// The agent of the removed instance finds no removal in the new store.
			members.Put(t, direct, l.Instance(out), members.Ready, clientv3.WithLease(members.Lease(t, direct, 600)))
			if past {
				for range 300 {
					members.Put(t, direct, "/other", "")
				}
				link.Restore()
			}
			members.WaitFor(t, w, fresh, members.Usable)
			members.WaitFor(t, w, held, orphan)
			in := members.WaitFor(t, w, out, members.Is(func(in *instance.Instance) bool {
				return in.Intent == instance.Removed && !in.Usable()
			}))
			assert.NotEqual(t, "", in.Reason, "no reason")
			if s := w.Status(); s.Epochs == 0 || !slices.Equal(s.Kept, []string{"override/prefill/" + out.Address, "prefill/" + static.Address, "prefill/" + bare.Address}) {
				t.Fatalf("status: %+v", s)
			}
			if in := members.WaitFor(t, w, static, members.Usable); in.View != "" || in.Reason == "" {
				t.Fatalf("%+v", in)
			}
			// The operator orders every proxy to restore it.
			second := members.Watch(t, members.Dial(t, etcd.Endpoint()), o)
			require.NoError(t, store.New(direct, l, "test").Kept.Order(t.Context(), schema.OrderRestore, []instance.Key{static}, "go on"))
			in = members.WaitFor(t, second, static, members.Usable)
			members.WaitFor(t, w, static, func(now *instance.Instance) error {
				if now.Reason != "" || !now.Static() || now.ModRevision != in.ModRevision {
					return fmt.Errorf("%+v", now)
				}
				return nil
			})
			require.Len(t, w.Status().Kept, 2)
			if in := members.WaitFor(t, second, out, members.Usable); in.Intent != "" { // this proxy does not know the intent
				t.Fatalf("%+v", in)
			}
			require.NoError(t, store.New(direct, l, "test").Kept.Order(t.Context(), schema.OrderRestore, nil, "all"))
			members.WaitFor(t, second, out, members.Is(func(in *instance.Instance) bool { return in.Intent == instance.Removed }))
			members.WaitStatus(t, w, func(s watch.Status) bool { return len(s.Kept) == 0 })
			// An add in the new store is deliberate.
			_, err = store.New(direct, l, "test").Instances.Remove(t.Context(), out, "")
			require.NoError(t, err)
			_, err = store.New(direct, l, "test").Instances.Add(t.Context(), out,
				instance.Record{Models: []string{"m"}}, "")
			require.NoError(t, err)
			members.WaitFor(t, w, out, members.Usable)
		})
	}
}

// An intent with a time limit ends with its store: kept, it would have no end,
// and restored, it would be permanent. The log reports it to operators.
func TestTemporaryIntent_NotKept(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
	a, b := members.Decode("10.0.0.1:8200"), members.Decode("10.0.0.2:8200")
	for _, k := range []instance.Key{a, b} {
		prober.Answer(k.Address, "m")
		members.Put(t, cli, l.Instance(k), members.Ready)
	}
	st := store.New(cli, l, "test")
	_, err := st.Intents.Intend(t.Context(), a, instance.Drain, store.IntentOptions{For: time.Hour})
	require.NoError(t, err)
	_, err = st.Intents.Intend(t.Context(), b, instance.Drain, store.IntentOptions{})
	require.NoError(t, err)
	for range 50 {
		members.Put(t, cli, "/other", "")
	}
	route := instance.Key{Role: schema.Models, Address: "chat"}
	_, err = st.Documents.Put(t.Context(), route, []byte(`{"v":1,"targets":[{"model":"m"}]}`),
		store.DocumentOptions{For: time.Hour})
	require.NoError(t, err)
	waiting := members.Decode("10.0.0.3:8200")
	members.Put(t, cli, l.Pending(waiting), "")
	log, hook := test.NewNullLogger()
	o := members.Probing(t, prober, "")
	o.Log = log
	w := members.Watch(t, cli, o)
	intent := func(k instance.Key, want instance.Intent) {
		t.Helper()
		members.WaitFor(t, w, k, members.Is(func(in *instance.Instance) bool { return in.Intent == want }))
	}
	intent(a, instance.Drain)
	intent(b, instance.Drain)
	members.WaitState(t, w, watch.Live)
	etcd.Wipe()
	etcd.Restart()
	want := []string{"decode/" + a.Address, "decode/" + b.Address, "override/decode/" + b.Address}
	members.WaitStatus(t, w, func(s watch.Status) bool { return slices.Equal(s.Kept, want) })
	intent(a, "")
	intent(b, instance.Drain)
	var dropped []string
	for _, e := range hook.AllEntries() {
		if e.Level == logrus.WarnLevel && strings.Contains(e.Message, "dropped") {
			dropped = append(dropped, fmt.Sprint(e.Data["key"]))
		}
	}
	slices.Sort(dropped)
	want = []string{"models/chat", "override/decode/" + a.Address, "pending/decode/" + waiting.Address}
	assert.True(t, slices.Equal(dropped, want), "the log has %v as dropped, want %v", dropped, want)
}

// A new intent would replace the whole kept intent, so it is
// refused until an operator has decided about the kept one.
func TestKeptIntent_NotReplaced(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
	st, weight := store.New(cli, l, "test"), 50
	drained, weighted := members.Decode("10.0.0.1:8200"), members.Decode("10.0.0.2:8200")
	register := func() {
		for _, k := range []instance.Key{drained, weighted} {
			prober.Answer(k.Address, "m")
			leased(t, cli, l, k)
		}
	}
	drain := func(k instance.Key) error {
		_, err := st.Intents.Intend(t.Context(), k, instance.Drain, store.IntentOptions{Reason: "disks"})
		return err
	}
	weigh := func(k instance.Key) error {
		_, err := st.Intents.SetWeight(t.Context(), k, &weight, store.IntentOptions{})
		return err
	}
	register()
	require.NoError(t, drain(drained))
	require.NoError(t, weigh(weighted))
	for range 50 {
		members.Put(t, cli, "/other", "")
	}
	o := members.Probing(t, prober, "")
	o.Writer = st.Watch
	w := members.Watch(t, cli, o)
	members.WaitState(t, w, watch.Live)
	p := lease.NewPresence(cli, lease.PresenceOptions{Layout: l, ID: "p1", Interval: 5 * time.Millisecond, Applied: func() int64 { return 0 }, Report: func() lease.Report {
		return lease.Report{Kept: lease.KeptKeys(w.Status().Kept)}
	}})
	defer background.Start(t.Context(), p.Run)()
	etcd.Wipe()
	etcd.Restart()
	register()
	published := func(n int) {
		t.Helper()
		testkit.Eventually(t, members.Soon, func() error {
			ps, err := st.Reader.Proxies(t.Context())
			if err != nil || len(ps) != 1 || len(ps[0].Kept) != n {
				return fmt.Errorf("%+v, %v", ps, err)
			}
			return nil
		})
	}
	published(2)
	assert.ErrorIs(t, weigh(drained), store.ErrIntent, "a weight in place of a kept drain")
	assert.ErrorIs(t, drain(weighted), store.ErrIntent, "a drain in place of a kept weight")
	both := members.Is(func(in *instance.Instance) bool {
		return in.Intent == instance.Drain && in.Record.Weight != nil && *in.Record.Weight == weight
	})
	require.NoError(t, st.Kept.Order(t.Context(), schema.OrderRestore, nil, ""))
	published(0)
	require.NoError(t, weigh(drained))
	require.NoError(t, drain(weighted))
	members.WaitFor(t, w, drained, both)
	members.WaitFor(t, w, weighted, both)
}

// A wiped etcd has the same member id, resumes the watch without an error, and
// is silent until it has passed the old revision. The check detects the wipe
// by the lower revision; the watcher follows orders in the new store.
func TestWipedEtcd_ResumedWatch(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
	a, b, out := members.Prefill("10.0.0.1:8100"), members.Prefill("10.0.0.2:8100"), members.Decode("10.0.0.3:8200")
	for range 50 {
		members.Put(t, cli, "/other", "")
	}
	for _, k := range []instance.Key{a, b} {
		members.Put(t, cli, l.Instance(k), members.Ready)
	}
	members.Put(t, cli, l.Override(out), `{"v":1,"state":"removed"}`)
	w := members.Watch(t, cli, members.Probing(t, prober, ""))
	members.WaitFor(t, w, b, members.Usable)
	members.WaitState(t, w, watch.Live)
	members.NeverWithout(t, w, b)
	etcd.Wipe()
	etcd.Restart()
	members.WaitStatus(t, w, func(s watch.Status) bool { return len(s.Kept) == 3 && s.State == watch.Live })
	s := w.Status()
	require.True(t, s.Epochs != 0 && s.Revision <= 50 && s.Applied <= 50, "status: %+v", s)
	store := store.New(members.Dial(t, etcd.Endpoint()), l, "test")
	require.NoError(t, store.Kept.Order(t.Context(), schema.OrderForget, []instance.Key{a}, "removed with the rack"))
	members.WaitFor(t, w, a, nil)
	require.Len(t, w.Status().Kept, 2)
	require.NoError(t, store.Kept.Order(t.Context(), schema.OrderForget, []instance.Key{out}, ""))
	members.WaitStatus(t, w, func(s watch.Status) bool { return len(s.Kept) == 1 })
	log, err := store.Reader.AuditLog(t.Context(), 0)
	if err != nil || len(log) != 2 || log[1].What != "forget" || log[1].Address != a.Address || log[1].Why != "removed with the rack" {
		t.Fatalf("%+v, %v", log, err)
	}
	// The orders have left nothing in the store.
	if s, err := store.Reader.Snapshot(t.Context()); err != nil || len(s.All()) != 0 {
		t.Fatalf("%v, %v", s.All(), err)
	}
}

// An engine that was still starting when the store was replaced is used once it answers.
func TestKeptInstanceAnswersLater(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l, prober := members.Dial(t, etcd.Endpoint()), members.Layout(t), members.NewProber()
	k := members.Prefill("10.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), "")
	for range 50 {
		members.Put(t, cli, "/other", "")
	}
	w := members.Watch(t, cli, members.Probing(t, prober, ""))
	members.WaitFor(t, w, k, members.HasView(instance.Unverified))
	members.WaitState(t, w, watch.Live)
	etcd.Wipe()
	etcd.Restart()
	members.WaitStatus(t, w, func(s watch.Status) bool { return len(s.Kept) == 1 })
	members.WaitFor(t, w, k, members.HasView(instance.Unverified))
	prober.Answer(k.Address, "m")
	members.WaitFor(t, w, k, members.Usable)
}
