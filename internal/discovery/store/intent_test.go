package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestIntend(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	k := instance.Key{Role: instance.Decode, Address: "127.0.0.1:8200"}
	override := func() (out schema.Override, raw store.RawKey) {
		t.Helper()
		got, err := s.Reader.Get(t.Context(), k)
		require.NoError(t, err)
		for _, raw = range got {
			if raw.Key == l.Override(k) {
				out, err = schema.DecodeOverride(raw.Value)
				require.NoError(t, err)
				return out, raw
			}
		}
		return schema.Override{}, store.RawKey{}
	}
	intend := func(state instance.Intent, w store.IntentOptions) store.IntentResult {
		t.Helper()
		done, err := s.Intents.Intend(t.Context(), k, state, w)
		require.NoError(t, err)
		return done
	}

	done := intend(instance.Drain, store.IntentOptions{})
	assert.True(t, !done.Known && !done.Changed, "of an unknown one: %+v", done)
	members.Put(t, cli, l.Instance(k), members.Ready)
	first := intend(instance.Drain, store.IntentOptions{Reason: "disks"})
	if o, raw := override(); !first.Changed || first.Revision != raw.ModRevision || o.State != instance.Drain || o.Reason != "disks" || o.By != "ann" {
		t.Errorf("%+v: %+v at %d", first, o, raw.ModRevision)
	}
	if again := intend(instance.Drain, store.IntentOptions{}); again.Changed || again.Revision != first.Revision || again.Was != instance.Drain {
		t.Errorf("again: %+v", again)
	}
	_, err := s.Intents.Lift(t.Context(), k, instance.Cordon, "")
	assert.ErrorIs(t, err, store.ErrIntent, "uncordon of a drained one")
	// The last intent counts. An intent with a time limit has a lease.
	done = intend(instance.Cordon, store.IntentOptions{For: time.Minute})
	assert.True(t, done.Changed && done.Was == instance.Drain, "%+v", done)
	if o, raw := override(); o.State != instance.Cordon || raw.GrantedTTL != time.Minute {
		t.Errorf("%+v with a lease of %s", o, raw.GrantedTTL)
	}
	// An override with a lease expires as a whole, so it cannot include a weight.
	weight := 50
	_, err = s.Intents.SetWeight(t.Context(), k, &weight, store.IntentOptions{})
	assert.ErrorIs(t, err, store.ErrIntent, "a weight beside what is for a time")
	intend(instance.Cordon, store.IntentOptions{})
	_, raw := override()
	assert.EqualValues(t, 0, raw.Lease, "%+v has a lease still", raw)
	_, err = s.Intents.SetWeight(t.Context(), k, &weight, store.IntentOptions{})
	assert.NoError(t, err)
	_, err = s.Intents.Intend(t.Context(), k, instance.Drain, store.IntentOptions{For: time.Minute})
	assert.ErrorIs(t, err, store.ErrIntent, "a time beside a weight")
	_, err = s.Intents.Lift(t.Context(), k, instance.Cordon, "")
	assert.NoError(t, err)
	o, _ := override()
	assert.True(t, o.State == "" && o.Weight != nil && *o.Weight == weight, "the weight is lost: %+v", o)
	_, err = s.Intents.SetWeight(t.Context(), k, nil, store.IntentOptions{})
	assert.NoError(t, err)
	_, raw = override()
	assert.Equal(t, "", raw.Key, "left: %+v", raw)
	_, err = s.Instances.Remove(t.Context(), k, "")
	require.NoError(t, err)
	_, err = s.Intents.Intend(t.Context(), k, instance.Drain, store.IntentOptions{})
	assert.ErrorIs(t, err, store.ErrIntent, "of a removed one")
	_, err = s.Intents.Intend(t.Context(), k, instance.Drain, store.IntentOptions{For: time.Second})
	assert.ErrorIs(t, err, store.ErrIntent, "for a second")

	log, err := s.Reader.AuditLog(t.Context(), 0)
	require.NoError(t, err)
	var got []string
	for _, e := range log {
		weight := "-"
		if e.Weight != nil {
			weight = fmt.Sprint(*e.Weight)
		}
		got = append(got, fmt.Sprintf("%s %s %s %s", e.What, e.Why, e.For, weight))
	}
	want := "[remove   - weight   - uncordon   - weight   50 cordon   - cordon  1m0s - drain disks  -]"
	assert.Equal(t, want, fmt.Sprint(got), got)
}

// A weight that remains after a removal has the reason of the change that ended the removal.
func TestAllow_Weight(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	k := members.Prefill("127.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), members.Ready)
	at := func(actor string) *store.Store { return store.New(cli, l, actor) }
	weight := 30
	_, err := at("ann").Intents.SetWeight(t.Context(), k, &weight, store.IntentOptions{Reason: "slow"})
	require.NoError(t, err)
	_, err = at("bob").Instances.Remove(t.Context(), k, "burnt")
	require.NoError(t, err)
	_, err = at("cid").Instances.Allow(t.Context(), k, "mended")
	require.NoError(t, err)
	raw, err := at("").Reader.Get(t.Context(), k)
	require.NoError(t, err)
	want := `{"v":1,"weight":30,"reason":"mended","by":"cid"}`
	assert.True(t, len(raw) == 1 && string(raw[0].Value) == want, "%+v, want %s", raw, want)
}

// overtaken is a KV in which another operator writes between the
// first read and the transaction that depends on it.
type overtaken struct {
	clientv3.KV
	txns  int
	write func()
}

func (o *overtaken) Txn(ctx context.Context) clientv3.Txn {
	if o.txns++; o.txns == 2 { // the first one reads
		o.write()
	}
	return o.KV.Txn(ctx)
}

// If another operator has replaced a drain by a cordon, lifting the drain is an error.
func TestLiftAfterAnotherIntent(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, late, l := etcd.Client(t), etcd.Client(t), members.Layout(t)
	k := instance.Key{Role: instance.Decode, Address: "10.0.0.1:1"}
	members.Put(t, cli, l.Instance(k), `{"models":["m"]}`)
	other := store.New(cli, l, "other")
	_, err := other.Intents.Intend(t.Context(), k, instance.Drain, store.IntentOptions{})
	require.NoError(t, err)
	late.KV = &overtaken{KV: late.KV, write: func() {
		_, err = other.Intents.Intend(t.Context(), k, instance.Cordon, store.IntentOptions{})
		assert.NoError(t, err)
	}}
	if done, err := store.New(late, l, "late").Intents.Lift(t.Context(), k, instance.Drain, ""); !errors.Is(err, store.ErrIntent) {
		t.Errorf("%+v, %v", done, err)
	}
}

// An order does not replace one that was given meanwhile: its keys would be kept.
func TestOrderAfterAnother(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	late, l := etcd.Client(t), members.Layout(t)
	late.KV = &overtaken{KV: late.KV, write: func() {
		assert.NoError(t, store.New(etcd.Client(t), l, "other").Kept.Order(t.Context(), schema.OrderForget, nil, ""))
	}}
	st := store.New(late, l, "late")
	assert.ErrorIs(t, st.Kept.Order(t.Context(), schema.OrderForget, nil, ""), store.ErrConflict)
	assert.NoError(t, st.Kept.Order(t.Context(), schema.OrderForget, nil, ""))
}

// An engine in both roles is drained in one transaction. For an engine
// with a single role, the drain is refused with the name of that role, unless forced.
func TestIntendBoth(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	both := instance.Key{Role: instance.Both, Address: "127.0.0.1:8200"}
	members.Put(t, cli, l.Instance(both.Each()[1]), members.Ready)
	if done, err := s.Intents.Intend(t.Context(), both, instance.Drain, store.IntentOptions{}); !errors.Is(err, store.ErrIntent) || !strings.Contains(err.Error(), "registered as decode only") || done.Changed {
		t.Fatalf("%+v, %v", done, err)
	}
	weight := instance.MaxWeight + 1
	if done, err := s.Intents.SetWeight(t.Context(), both.Each()[1], &weight, store.IntentOptions{}); !errors.Is(err, store.ErrIntent) || done.Changed {
		t.Errorf("%+v, %v", done, err)
	}
	_, err := s.Instances.Remove(t.Context(), both, "")
	assert.ErrorIs(t, err, store.ErrIntent, "remove")
	for i, want := range []int{0, 1} { // nothing was written
		if raw, err := s.Reader.Get(t.Context(), both.Each()[i]); err != nil || len(raw) != want {
			t.Errorf("%s: %+v, %v", both.Each()[i], raw, err)
		}
	}
	members.Put(t, cli, l.Instance(both.Each()[0]), members.Ready)
	done, err := s.Intents.Intend(t.Context(), both, instance.Cordon, store.IntentOptions{For: time.Minute})
	require.NoError(t, err)
	for _, k := range both.Each() {
		raw, err := s.Reader.Get(t.Context(), k)
		if err != nil || len(raw) != 2 || raw[1].ModRevision != done.Revision || raw[1].GrantedTTL != time.Minute {
			t.Errorf("%s: %+v, %v", k, raw, err)
		}
	}
}

// A proxy sees an intent with a time limit end with its lease.
func TestIntent_EndsWithLease(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	k := instance.Key{Role: instance.Decode, Address: "127.0.0.1:8200"}
	members.Put(t, cli, l.Instance(k), members.Ready)
	w := members.Watch(t, cli, watch.Options{Layout: l})
	intent := func(want instance.Intent) {
		t.Helper()
		members.WaitFor(t, w, k, members.Is(func(in *instance.Instance) bool { return in.Intent == want }))
	}
	intent("")
	done, err := s.Intents.Intend(t.Context(), k, instance.Drain, store.IntentOptions{For: 2 * time.Second})
	require.NoError(t, err)
	testkit.EventuallyTrue(t, 30*time.Second, func() bool { return w.Snapshot().Revision >= done.Revision },
		"not seen yet")
	intent("")
	if raw, err := s.Reader.Get(t.Context(), k); err != nil || len(raw) != 1 {
		t.Errorf("%+v, %v", raw, err)
	}
}

// The entries of one day share one lease, and their number is bounded.
func TestAudit_Bounded(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	s.KeepAudit(20)
	k := instance.Key{Role: instance.Decode, Address: "127.0.0.1:8200"}
	members.Put(t, cli, l.Instance(k), members.Ready)
	for i := range 50 {
		weight := i
		_, err := s.Intents.SetWeight(t.Context(), k, &weight, store.IntentOptions{})
		require.NoError(t, err)
	}
	log, err := s.Reader.AuditLog(t.Context(), 0)
	assert.True(t, err == nil && len(log) <= 21 && len(log) != 0 && *log[0].Weight == 49,
		"%d entries, the newest %+v, %v", len(log), log, err)
	leases, err := cli.Leases(t.Context())
	if err != nil || len(leases.Leases) > 2 { // two around midnight
		t.Fatalf("%d leases, %v", len(leases.Leases), err)
	}
	for _, lease := range leases.Leases {
		resp, err := cli.TimeToLive(t.Context(), lease.ID, clientv3.WithAttachedKeys())
		assert.True(t, err == nil && resp.TTL >= 30*24*3600-60, "%+v, %v", resp, err)
	}
}
