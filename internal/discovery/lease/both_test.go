package lease_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

const bothAddress = "10.0.0.1:8100"

func inBoth(address string) instance.Key { return instance.Key{Role: instance.Both, Address: address} }

// An engine in both roles has two keys under one lease, and every change of the record
// writes both in one transaction.
func TestRegistrarBoth(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	r := members.Register(t, cli, members.RegistrarOptions(t, inBoth(bothAddress)))
	for i, rec := range []instance.Record{
		{ID: "A", KVRole: "kv_both"},
		{ID: "A", KVRole: "kv_both", State: instance.Down},
		{ID: "B", KVRole: "kv_both"},
		{ID: "B", KVRole: "kv_both", State: instance.Draining},
	} {
		r.Set(rec)
		testkit.EventuallyTrue(t, members.Soon, r.Arrived, "arrival of record ", i)
		p, d, s := members.RawKey(t, cli, members.Prefill(bothAddress)), members.RawKey(t, cli, members.Decode(bothAddress)), r.Status()
		switch {
		case p == nil || d == nil || p.ModRevision != d.ModRevision || p.CreateRevision != d.CreateRevision || p.ModRevision != s.ModRevision:
			t.Fatalf("record %d: not one transaction: %+v, %+v, %+v", i, p, d, s)
		case p.Lease == 0 || p.Lease != d.Lease || p.Lease != s.LeaseID || s.Registrations != 1:
			t.Fatalf("record %d: not one lease: %+v, %+v, %+v", i, p, d, s)
		}
		for k, raw := range map[instance.Key]*store.RawKey{members.Prefill(bothAddress): p, members.Decode(bothAddress): d} {
			got, _, err := schema.DecodeRecord(k, raw.Value)
			if err != nil || got.ID != rec.ID || got.Role != k.Role || got.KVRole != "kv_both" || rec.State != "" && got.State != rec.State {
				t.Fatalf("record %d at %s: %s, %v", i, k, raw.Value, err)
			}
		}
	}
	require.NoError(t, r.Revoke(t.Context()))
	p, d := members.RawKey(t, cli, members.Prefill(bothAddress)), members.RawKey(t, cli, members.Decode(bothAddress))
	assert.True(t, p == nil && d == nil, "left behind: %+v, %+v", p, d)
}

// If another owner holds one of the two keys, the agent writes neither.
func TestRegistrarBoth_AllOrNothing(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	for i, c := range []struct {
		role  instance.Role
		value string
		lease bool
		want  lease.Phase
	}{
		{instance.Prefill, `{"id":"B","host_id":"host-2"}`, true, lease.Conflict},
		{instance.Decode, `{"id":"B","host_id":"host-2"}`, true, lease.Conflict},
		{instance.Prefill, ``, false, lease.StaticPresent},
		{instance.Decode, `{"models":["m"]}`, false, lease.StaticPresent},
	} {
		t.Run(fmt.Sprintf("%s %s", c.role, c.want), func(t *testing.T) {
			t.Parallel()
			k := instance.Key{Role: c.role, Address: fmt.Sprintf("10.0.1.%d:8100", i)}
			var opts []clientv3.OpOption
			if c.lease {
				opts = append(opts, clientv3.WithLease(members.Lease(t, cli, 600)))
			}
			members.Put(t, cli, members.Layout(t).Instance(k), c.value, opts...)
			before := members.RawKey(t, cli, k)
			r := members.Register(t, cli, members.RegistrarOptions(t, inBoth(k.Address)))
			r.Set(instance.Record{ID: "A"})
			members.WaitPhase(t, r, c.want)
			s := r.Status()
			assert.True(t, strings.HasPrefix(s.Err, string(c.role)+": "), "it does not say which: %q", s.Err)
			other := instance.Key{Role: c.role.Other(), Address: k.Address}
			raw := members.RawKey(t, cli, other)
			assert.True(t, raw == nil, "half a registration: %+v", raw)
			assert.Equal(t, before.ModRevision, members.RawKey(t, cli, k).ModRevision,
				"the key was touched, was %+v", before)
			members.Del(t, cli, members.Layout(t).Instance(k))
			members.WaitPhase(t, r, lease.Registered)
			p, d := members.RawKey(t, cli, k), members.RawKey(t, cli, other)
			assert.True(t, p != nil && d != nil && p.ModRevision == d.ModRevision, "registered as %+v and %+v", p, d)
		})
	}
}

// A removal affects only the role that it names; the record of the other role is still updated.
func TestRegistrarBoth_OneRoleRemoved(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	store := store.New(cli, members.Layout(t), "test")
	r := members.Register(t, cli, members.RegistrarOptions(t, inBoth(bothAddress)))
	r.Set(instance.Record{ID: "A"})
	members.WaitPhase(t, r, lease.Registered)
	_, err := store.Instances.Remove(t.Context(), members.Prefill(bothAddress), "no prefills here")
	require.NoError(t, err)
	r.Set(instance.Record{ID: "A", State: instance.Down})
	members.WaitRegistration(t, r, func(s lease.Status) bool {
		return r.Arrived() && s.Phase == lease.Registered && strings.Contains(s.Err, "prefill: removed by an operator")
	})
	p, d := members.RawKey(t, cli, members.Prefill(bothAddress)), members.RawKey(t, cli, members.Decode(bothAddress))
	require.True(t, p == nil && d != nil && strings.Contains(string(d.Value), `"down"`),
		"prefill %+v, decode %+v", p, d)
	_, err = store.Instances.Remove(t.Context(), members.Decode(bothAddress), "nor decodes")
	require.NoError(t, err)
	members.WaitPhase(t, r, lease.Overridden)
	for _, k := range inBoth(bothAddress).Each() {
		_, err = store.Instances.Allow(t.Context(), k, "mended")
		require.NoError(t, err)
	}
	testkit.Eventually(t, members.Soon, func() error {
		s := r.Status()
		if p, d := members.RawKey(t, cli, members.Prefill(bothAddress)), members.RawKey(t, cli, members.Decode(bothAddress)); p == nil || d == nil || p.Lease != d.Lease || s.Err != "" {
			return fmt.Errorf("prefill %+v, decode %+v, %+v", p, d, s)
		}
		return nil
	})
}

// bothFleet is a Watcher that follows engines in both roles; the test holds their leases.
type bothFleet struct {
	cli       *clientv3.Client
	w         *watch.Watcher
	addresses []string
	leases    []clientv3.LeaseID
}

func newBothFleet(t *testing.T, n int) *bothFleet {
	t.Helper()
	f := &bothFleet{cli: etcdtest.Start(t).Client(t)}
	prober := members.NewProber()
	for i := range n {
		address := fmt.Sprintf("10.0.0.%d:8100", i+1)
		prober.Answer(address, "m")
		id := members.Lease(t, f.cli, 600)
		f.put(t, address, id, `{"id":"x","models":["m"],"kv_role":"kv_both"}`)
		f.addresses, f.leases = append(f.addresses, address), append(f.leases, id)
	}
	o := members.Probing(t, prober, "")
	o.OrphanGrace = time.Hour
	f.w = members.Watch(t, f.cli, o)
	f.usable(t, n)
	return f
}

// put writes both keys, as an agent does.
func (f *bothFleet) put(t *testing.T, address string, id clientv3.LeaseID, value string) {
	t.Helper()
	var ops []clientv3.Op
	for _, k := range inBoth(address).Each() {
		ops = append(ops, clientv3.OpPut(members.Layout(t).Instance(k), value, clientv3.WithLease(id)))
	}
	_, err := f.cli.Txn(t.Context()).Then(ops...).Commit()
	require.NoError(t, err)
}

// usable waits until want instances of each role are usable.
func (f *bothFleet) usable(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, members.Soon, func() error {
		snap := f.w.Snapshot()
		if p, d := len(snap.Usable(instance.Prefill)), len(snap.Usable(instance.Decode)); p != want || d != want {
			return fmt.Errorf("%d prefill and %d decode instances are usable, want %d", p, d, want)
		}
		return nil
	})
}

// views waits until each role has exactly all instances, of which orphans
// are orphans. No instance may have a problem because of its two roles.
func (f *bothFleet) views(t *testing.T, all, orphans int) {
	t.Helper()
	testkit.Eventually(t, members.Soon, func() error {
		members, lost := map[instance.Role]int{}, map[instance.Role]int{}
		for _, in := range f.w.Snapshot().All() {
			members[in.Role]++
			if in.View == instance.Orphan {
				lost[in.Role]++
			}
			if strings.Contains(in.Reason, "both roles") {
				return fmt.Errorf("%s is complained about: %s", in.Key, in.Reason)
			}
		}
		for _, role := range instance.Roles() {
			if members[role] != all || lost[role] != orphans {
				return fmt.Errorf("members %v, orphans %v, want %d and %d of each", members, lost, all, orphans)
			}
		}
		return nil
	})
}

// An engine in both roles counts once in each. If it drains, it is removed at once; if its lease is
// lost, it is an orphan in both roles. If more than a third of a role is lost, all of it is held.
func TestBothRoles_EngineCountedOnce(t *testing.T) {
	t.Parallel()
	f := newBothFleet(t, 6)
	f.put(t, f.addresses[0], f.leases[0], `{"id":"x","models":["m"],"kv_role":"kv_both","state":"draining"}`)
	f.usable(t, 5)
	members.Revoke(t, f.cli, f.leases[0])
	f.views(t, 5, 0)
	members.Revoke(t, f.cli, f.leases[1])
	f.views(t, 5, 1)
	for _, id := range f.leases[2:5] {
		members.Revoke(t, f.cli, id)
	}
	f.views(t, 5, 4)
	f.usable(t, 5)
}

// Deleting one of two keys under a valid lease removes only that membership.
func TestBothOneKeyDeleted(t *testing.T) {
	t.Parallel()
	f := newBothFleet(t, 4)
	members.Del(t, f.cli, members.Layout(t).Instance(members.Prefill(f.addresses[0])))
	members.WaitFor(t, f.w, members.Prefill(f.addresses[0]), nil)
	in, ok := f.w.Snapshot().Lookup(members.Decode(f.addresses[0]))
	assert.True(t, ok && in.Usable() && in.View == "", "the other membership is %+v", in)
}
