package watch_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Five proxies see the same pending add pass its probes; one promotes it.
func TestPromotion_OnlyOneWins(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	l, prober := members.Layout(t), members.NewProber()
	cli := etcd.Client(t)
	st := store.New(cli, l, "operator")
	const proxies, rounds = 5, 10
	watchers := make([]*watch.Watcher, proxies)
	for i := range watchers {
		o := members.Probing(t, prober, "m")
		o.Writer = store.New(cli, l, fmt.Sprintf("proxy-%d", i)).Watch
		watchers[i] = members.Watch(t, etcd.Client(t), o)
		members.WaitReady(t, watchers[i])
	}
	for round := range rounds {
		k := members.Prefill(fmt.Sprintf("127.0.0.1:%d", 8100+round))
		outcome, err := st.Instances.AddPending(t.Context(), k, schema.PendingAdd{Connector: "nixl"}, 0, "more load")
		if err != nil || outcome != store.Waiting {
			t.Fatal(outcome, err)
		}
		for _, w := range watchers {
			testkit.Eventually(t, members.Soon, func() error {
				ps := pendings(w.Snapshot())
				if len(ps) != 1 || ps[0].Key != k || !strings.Contains(ps[0].Reason, "refused") {
					return fmt.Errorf("%d pending", len(ps))
				}
				return nil
			})
		}
		prober.Answer(k.Address, "m")
		for _, w := range watchers {
			in := members.WaitFor(t, w, k, members.Usable)
			if !in.Static() || in.Version != 1 || in.Record.Source != "admin" || in.Record.Connector != "nixl" || in.Record.Models[0] != "m" {
				t.Fatalf("%+v", in)
			}
			testkit.EventuallyEqual(t, members.Soon, func() int { return len(pendings(w.Snapshot())) }, 0,
				"still pending")
		}
	}
	log, err := st.Reader.AuditLog(t.Context(), 0)
	require.NoError(t, err)
	promoted := map[string]int{}
	for _, e := range log {
		if e.What == "promote" {
			promoted[e.Address]++
		}
	}
	assert.Len(t, promoted, rounds, "promotions in the audit log")
	for address, n := range promoted {
		assert.Equal(t, 1, n, "%s was promoted %d times", address, n)
	}
	// The counters agree once all watchers have finished.
	promotions := func() (total int64) {
		for _, w := range watchers {
			total += w.Status().Promotions
		}
		return total
	}
	testkit.EventuallyEqual(t, members.Soon, promotions, rounds)
}

func TestPendingAdd_NotPromotable(t *testing.T) {
	t.Parallel()
	cli, l, prober := etcdtest.Start(t).Client(t), members.Layout(t), members.NewProber()
	store := store.New(cli, l, "operator")
	w := members.Watch(t, cli, members.Probing(t, prober, ""))
	members.WaitReady(t, w)
	reason := func(k instance.Key, says string) {
		t.Helper()
		testkit.Eventually(t, members.Soon, func() error {
			for _, p := range pendings(w.Snapshot()) {
				if p.Key == k && strings.Contains(p.Reason, says) {
					return nil
				}
			}
			return fmt.Errorf("no pending %s that says %q", k, says)
		})
	}
	// A wrong model.
	k := members.Prefill("127.0.0.1:8100")
	prober.Answer(k.Address, "llama")
	_, err := store.Instances.AddPending(t.Context(), k, schema.PendingAdd{Model: "qwen"}, 0, "")
	require.NoError(t, err)
	reason(k, "serves llama, not qwen")
	prober.Answer(k.Address, "qwen")
	members.WaitFor(t, w, k, members.Usable)

	// An operator removes it meanwhile.
	k = members.Prefill("127.0.0.1:8101")
	_, err = store.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 0, "")
	require.NoError(t, err)
	reason(k, "refused")
	members.Put(t, cli, l.Override(k), `{"v":1,"state":"removed"}`)
	reason(k, "removed")
	prober.Answer(k.Address, "m")
	members.Del(t, cli, l.Override(k))
	members.WaitFor(t, w, k, members.Usable)

	// Its agent registers it meanwhile: the pending add ends, the record stays.
	k = members.Prefill("127.0.0.1:8102")
	_, err = store.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 0, "")
	require.NoError(t, err)
	reason(k, "refused")
	members.Put(t, cli, l.Instance(k), members.Ready, clientv3.WithLease(members.Lease(t, cli, 600)))
	testkit.EventuallyEqual(t, members.Soon, func() int { return len(pendings(w.Snapshot())) }, 0)
	in := members.WaitFor(t, w, k, members.Usable)
	require.True(t, !in.Static() && in.Version == 1, "%+v", in)

	// An invalid value, and a time limit.
	members.Put(t, cli, l.Pending(members.Prefill("127.0.0.1:8103")), `{"record":{"weight":-1}}`)
	reason(members.Prefill("127.0.0.1:8103"), "weight")
	members.Put(t, cli, l.Root()+"pending/prefill/localhost:8104", ``)
	reason(members.Prefill("127.0.0.1:8104"), "must be spelled")
	k = members.Prefill("127.0.0.1:8105")
	_, err = store.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 6*time.Second, "")
	require.NoError(t, err)
	reason(k, "refused")
	testkit.Eventually(t, members.Soon, func() error {
		for _, p := range pendings(w.Snapshot()) {
			if p.Key == k {
				return fmt.Errorf("still waits")
			}
		}
		return nil
	})
}

// A removal during the promotion wins or follows it; a removed instance is never left registered.
func TestPromotionAndRemovalRace(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	st := store.New(cli, l, "operator")
	other := store.New(etcd.Client(t), l, "proxy")
	for i := range 30 {
		k := members.Decode(fmt.Sprintf("127.0.0.1:%d", 8200+i))
		_, err := st.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 0, "")
		require.NoError(t, err)
		snap, err := st.Reader.Snapshot(t.Context())
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := other.Watch.Promote(context.Background(), pendings(snap)[0], instance.Record{Models: []string{"m"}}); err != nil {
				t.Error(err)
			}
		})
		if existed, err := st.Instances.Remove(t.Context(), k, ""); err != nil || !existed {
			t.Fatal(existed, err)
		}
		wg.Wait()
		raw := members.RawKey(t, cli, k)
		require.True(t, raw == nil, "removed, and there: %+v", raw)
	}
}

// If an operator writes during a promotion, etcd's order decides.
func TestPromotion_EarlierChangeWins(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	store := store.New(etcd.Client(t), l, "proxy")
	rec := instance.Record{Models: []string{"m"}}
	add := func(k instance.Key) *instance.Instance {
		t.Helper()
		members.Put(t, cli, l.Pending(k), "")
		snap, err := store.Reader.Snapshot(t.Context())
		require.NoError(t, err)
		for _, p := range pendings(snap) {
			if p.Key == k {
				return p
			}
		}
		t.Fatal("no pending add")
		return nil
	}
	k := members.Prefill("127.0.0.1:1")
	p := add(k)
	members.Put(t, cli, l.Override(k), `{"v":1,"state":"removed"}`)
	won, err := store.Watch.Promote(t.Context(), p, rec)
	require.True(t, !won && err == nil, "promoted against a removal: %t, %v", won, err)
	members.Put(t, cli, l.Override(k), `{"v":1,"state":"drain"}`)
	members.Put(t, cli, l.Pending(k), " ")
	won, err = store.Watch.Promote(t.Context(), p, rec)
	require.True(t, !won && err == nil, "promoted another pending add: %t, %v", won, err)
	won, err = store.Watch.Promote(t.Context(), add(k), rec)
	require.True(t, won && err == nil, "a drained one may be added: %t, %v", won, err)
	won, err = store.Watch.Promote(t.Context(), add(k), rec)
	require.True(t, !won && err == nil, "promoted over a record: %t, %v", won, err)
	for i, c := range []struct {
		name string
		do   func(k instance.Key) clientv3.Op
	}{
		{"removal", func(k instance.Key) clientv3.Op { return clientv3.OpPut(l.Override(k), `{"v":1,"state":"removed"}`) }},
		{"end of the wait", func(k instance.Key) clientv3.Op { return clientv3.OpDelete(l.Pending(k)) }},
	} {
		won, lost := 0, 0
		rounds := longform.Count(50, 150)
		for round := range rounds {
			k := members.Decode(fmt.Sprintf("127.0.0.1:%d", 10000+1000*i+round))
			p := add(k)
			var byHand int64
			var wg sync.WaitGroup
			wg.Go(func() {
				pause := time.NewTimer(time.Duration(round) * 3 * time.Millisecond / time.Duration(rounds)) // sweep over the moment of the promotion
				<-pause.C
				resp, err := cli.Do(context.Background(), c.do(k))
				if err != nil {
					t.Error(err)
					return
				}
				if r := resp.Put(); r != nil {
					byHand = r.Header.Revision
				} else if r := resp.Del(); r.Deleted > 0 {
					byHand = r.Header.Revision
				}
			})
			_, err := store.Watch.Promote(t.Context(), p, rec)
			require.NoError(t, err)
			wg.Wait()
			switch raw := members.RawKey(t, cli, k); {
			case raw == nil:
				lost++
			case byHand != 0 && raw.CreateRevision > byHand:
				t.Fatalf("%s at revision %d, promoted at %d", c.name, byHand, raw.CreateRevision)
			default:
				won++
			}
		}
		t.Logf("%s: promotion came first %d times, second %d times", c.name, won, lost)
	}
}
