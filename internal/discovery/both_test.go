package discovery_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

const bothAddress = "10.0.0.1:8100"

func inBoth(address string) instance.Key { return instance.Key{Role: instance.Both, Address: address} }

// An engine in both roles has two keys under one lease, and every change of the record
// writes both in one transaction.
func TestRegistrarBoth(t *testing.T) {
	t.Parallel()
	cli := testkit.StartEtcd(t).Client(t)
	r := register(t, cli, options(t, inBoth(bothAddress)))
	for i, rec := range []instance.Record{
		{ID: "A", KVRole: "kv_both"},
		{ID: "A", KVRole: "kv_both", State: instance.Down},
		{ID: "B", KVRole: "kv_both"},
		{ID: "B", KVRole: "kv_both", State: instance.Draining},
	} {
		r.Set(rec)
		testkit.Eventually(t, soon, func() error {
			if !r.Arrived() {
				return fmt.Errorf("record %d has not arrived: %+v", i, r.Status())
			}
			return nil
		})
		p, d, s := rawKey(t, cli, prefill(bothAddress)), rawKey(t, cli, decode(bothAddress)), r.Status()
		switch {
		case p == nil || d == nil || p.ModRevision != d.ModRevision || p.CreateRevision != d.CreateRevision || p.ModRevision != s.ModRevision:
			t.Fatalf("record %d: not one transaction: %+v, %+v, %+v", i, p, d, s)
		case p.Lease == 0 || p.Lease != d.Lease || p.Lease != s.LeaseID || s.Registrations != 1:
			t.Fatalf("record %d: not one lease: %+v, %+v, %+v", i, p, d, s)
		}
		for k, raw := range map[instance.Key]*discovery.RawKey{prefill(bothAddress): p, decode(bothAddress): d} {
			got, _, err := discovery.DecodeRecord(k, raw.Value)
			if err != nil || got.ID != rec.ID || got.Role != k.Role || got.KVRole != "kv_both" || rec.State != "" && got.State != rec.State {
				t.Fatalf("record %d at %s: %s, %v", i, k, raw.Value, err)
			}
		}
	}
	if err := r.Revoke(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, d := rawKey(t, cli, prefill(bothAddress)), rawKey(t, cli, decode(bothAddress)); p != nil || d != nil {
		t.Errorf("left behind: %+v, %+v", p, d)
	}
}

// Who holds one of the two keys keeps the agent from both: nothing is written by halves.
func TestRegistrarBothIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	cli := testkit.StartEtcd(t).Client(t)
	for i, c := range []struct {
		role  instance.Role
		value string
		lease bool
		want  discovery.Phase
	}{
		{instance.Prefill, `{"id":"B","host_id":"host-2"}`, true, discovery.Conflict},
		{instance.Decode, `{"id":"B","host_id":"host-2"}`, true, discovery.Conflict},
		{instance.Prefill, ``, false, discovery.StaticPresent},
		{instance.Decode, `{"models":["m"]}`, false, discovery.StaticPresent},
	} {
		t.Run(fmt.Sprintf("%s %s", c.role, c.want), func(t *testing.T) {
			t.Parallel()
			k := instance.Key{Role: c.role, Address: fmt.Sprintf("10.0.1.%d:8100", i)}
			var opts []clientv3.OpOption
			if c.lease {
				opts = append(opts, clientv3.WithLease(lease(t, cli, 600)))
			}
			put(t, cli, layout(t).Instance(k), c.value, opts...)
			before := rawKey(t, cli, k)
			r := register(t, cli, options(t, inBoth(k.Address)))
			r.Set(instance.Record{ID: "A"})
			waitPhase(t, r, c.want)
			if s := r.Status(); !strings.HasPrefix(s.Err, string(c.role)+": ") {
				t.Errorf("it does not say which: %q", s.Err)
			}
			other := instance.Key{Role: c.role.Other(), Address: k.Address}
			if raw := rawKey(t, cli, other); raw != nil {
				t.Errorf("half a registration: %+v", raw)
			}
			if after := rawKey(t, cli, k); after.ModRevision != before.ModRevision {
				t.Errorf("the key was touched: %+v, was %+v", after, before)
			}
			del(t, cli, layout(t).Instance(k))
			waitPhase(t, r, discovery.Registered)
			if p, d := rawKey(t, cli, k), rawKey(t, cli, other); p == nil || d == nil || p.ModRevision != d.ModRevision {
				t.Errorf("registered as %+v and %+v", p, d)
			}
		})
	}
}

// A removal concerns the role that it names; the other one stays and follows the engine.
func TestRegistrarBothHonoursRemovalOfOne(t *testing.T) {
	t.Parallel()
	cli := testkit.StartEtcd(t).Client(t)
	store := discovery.NewStore(cli, layout(t), "test")
	r := register(t, cli, options(t, inBoth(bothAddress)))
	r.Set(instance.Record{ID: "A"})
	waitPhase(t, r, discovery.Registered)
	if _, err := store.Remove(t.Context(), prefill(bothAddress), "no prefills here"); err != nil {
		t.Fatal(err)
	}
	r.Set(instance.Record{ID: "A", State: instance.Down})
	testkit.Eventually(t, soon, func() error {
		if s := r.Status(); !r.Arrived() || s.Phase != discovery.Registered || !strings.Contains(s.Err, "prefill: removed by an operator") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	p, d := rawKey(t, cli, prefill(bothAddress)), rawKey(t, cli, decode(bothAddress))
	if p != nil || d == nil || !strings.Contains(string(d.Value), `"down"`) {
		t.Fatalf("prefill %+v, decode %+v", p, d)
	}
	if _, err := store.Remove(t.Context(), decode(bothAddress), "nor decodes"); err != nil {
		t.Fatal(err)
	}
	waitPhase(t, r, discovery.Overridden)
	for _, k := range inBoth(bothAddress).Each() {
		if _, err := store.Allow(t.Context(), k, "mended"); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, soon, func() error {
		s := r.Status()
		if p, d := rawKey(t, cli, prefill(bothAddress)), rawKey(t, cli, decode(bothAddress)); p == nil || d == nil || p.Lease != d.Lease || s.Err != "" {
			return fmt.Errorf("prefill %+v, decode %+v, %+v", p, d, s)
		}
		return nil
	})
}

// bothFleet is a Watcher that sees engines in both roles, whose leases the test holds.
type bothFleet struct {
	cli       *clientv3.Client
	w         *discovery.Watcher
	addresses []string
	leases    []clientv3.LeaseID
}

func newBothFleet(t *testing.T, n int) *bothFleet {
	t.Helper()
	f := &bothFleet{cli: testkit.StartEtcd(t).Client(t)}
	prober := newProber()
	for i := range n {
		address := fmt.Sprintf("10.0.0.%d:8100", i+1)
		prober.answer(address, "m")
		id := lease(t, f.cli, 600)
		f.put(t, address, id, `{"id":"x","models":["m"],"kv_role":"kv_both"}`)
		f.addresses, f.leases = append(f.addresses, address), append(f.leases, id)
	}
	o := probing(t, prober, "")
	o.OrphanGrace = time.Hour
	f.w = watch(t, f.cli, o)
	f.usable(t, n)
	return f
}

// put writes both keys, as an agent does.
func (f *bothFleet) put(t *testing.T, address string, id clientv3.LeaseID, value string) {
	t.Helper()
	var ops []clientv3.Op
	for _, k := range inBoth(address).Each() {
		ops = append(ops, clientv3.OpPut(layout(t).Instance(k), value, clientv3.WithLease(id)))
	}
	if _, err := f.cli.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
}

// usable waits until so many are, in either role.
func (f *bothFleet) usable(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		snap := f.w.Snapshot()
		if p, d := len(snap.Usable(instance.Prefill)), len(snap.Usable(instance.Decode)); p != want || d != want {
			return fmt.Errorf("%d prefill and %d decode instances are usable, want %d", p, d, want)
		}
		return nil
	})
}

// views waits until so many memberships of each role are orphans, and all of them are so
// many. Nobody must be complained about for its two roles.
func (f *bothFleet) views(t *testing.T, all, orphans int) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
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

// Each role counts an engine in both once: one that drains is gone at once, one whose
// lease is lost is an orphan in either role, and when more than a third goes all of it
// is held.
func TestBothRolesCountAnEngineOnce(t *testing.T) {
	t.Parallel()
	f := newBothFleet(t, 6)
	f.put(t, f.addresses[0], f.leases[0], `{"id":"x","models":["m"],"kv_role":"kv_both","state":"draining"}`)
	f.usable(t, 5)
	revoke(t, f.cli, f.leases[0])
	f.views(t, 5, 0)
	revoke(t, f.cli, f.leases[1])
	f.views(t, 5, 1)
	for _, id := range f.leases[2:5] {
		revoke(t, f.cli, id)
	}
	f.views(t, 5, 4)
	f.usable(t, 5)
}

// Who deletes one key of two under a living lease means that one.
func TestBothOneKeyDeleted(t *testing.T) {
	t.Parallel()
	f := newBothFleet(t, 4)
	del(t, f.cli, layout(t).Instance(prefill(f.addresses[0])))
	testkit.Eventually(t, soon, func() error {
		if _, there := f.w.Snapshot().Lookup(prefill(f.addresses[0])); there {
			return fmt.Errorf("%s is still there", prefill(f.addresses[0]))
		}
		return nil
	})
	in, ok := f.w.Snapshot().Lookup(decode(f.addresses[0]))
	if !ok || !in.Usable() || in.View != "" {
		t.Errorf("the other membership is %+v", in)
	}
}
