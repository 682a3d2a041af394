package watch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/disk"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// mute never answers.
type mute struct{}

func (mute) Probe(ctx context.Context, _ *instance.Instance) (instance.Facts, error) {
	<-ctx.Done()
	return instance.Facts{}, ctx.Err()
}

// simulated is the owner of a watcher without etcd: the test passes it events, and no probes run.
type simulated struct {
	*owner
	w    *Watcher
	rng  *rand.Rand
	rev  int64
	life uint64                      // incarnation of the store
	keys map[string]*mvccpb.KeyValue // contents of the store
	seen []frozenView                // published snapshots
}

type frozenView struct {
	s   *instance.Snapshot
	all []instance.Instance
}

func simulate(t *testing.T, rng *rand.Rand, localhost bool) (s *simulated, names []string) {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	w := New(nil, Options{Layout: l, Prober: mute{}, OrphanGrace: time.Hour, Check: func(_ instance.Key, r instance.Record) error {
		if r.Connector == "strange" {
			return fmt.Errorf("the connector %q is not known", r.Connector)
		}
		return nil
	}})
	s = &simulated{owner: newOwner(w), w: w, rng: rng, rev: 1, life: 7, keys: map[string]*mvccpb.KeyValue{}}
	for range maxProbes { // probes wait for a slot until the end
		s.ask.slots <- struct{}{}
	}
	s.following = true
	names = append(names, "/pd/limits/a")
	for _, role := range []string{"prefill/", "decode/"} {
		for _, at := range []string{"", "", "", "pending/", "override/"} {
			for i := range 5 {
				names = append(names, "/pd/"+at+role+fmt.Sprintf("127.0.0.1:%d", i+1))
			}
		}
		names = append(names, "/pd/"+role+"0.0.0.0:1", "/pd/"+role+"bad\x01:1")
		if localhost {
			names = append(names, "/pd/"+role+"localhost:1", "/pd/override/"+role+"LOCALHOST:2")
		}
	}
	return s, names
}

var simulatedValues = []string{
	``, `{"models":["m"]}`, `{"models":["m"],"id":"A"}`, `{"models":["m","n"],"id":"B","kv_role":"kv_both"}`, `{"models":["m"],"state":"down"}`,
	`{"models":["m"],"connector":"strange"}`, `{"v":1,"state":"drain"}`, `{"v":1,"state":"removed"}`, `{"weight":3}`, `{`,
	`{"v":1,"state":"drain","role":"decode"}`,
}

// step simulates a random event that a watcher may receive.
func (s *simulated) step(names []string) {
	key := names[s.rng.IntN(len(names))]
	now := s.keys[key]
	switch n := s.rng.IntN(20); {
	case n < 8: // created or updated, under any lease
		s.rev++
		kv := &mvccpb.KeyValue{
			Key: []byte(key), Value: []byte(simulatedValues[s.rng.IntN(len(simulatedValues))]),
			CreateRevision: s.rev, ModRevision: s.rev, Version: 1, Lease: int64(s.rng.IntN(3)),
		}
		if now != nil {
			kv.CreateRevision, kv.Version = now.CreateRevision, now.Version+1
		}
		s.keys[key] = kv
		s.event(clientv3.EventTypePut, kv)
	case n < 11: // deleted
		if now != nil {
			s.rev++
			delete(s.keys, key)
			s.event(clientv3.EventTypeDelete, &mvccpb.KeyValue{Key: []byte(key), ModRevision: s.rev})
		}
	case n < 13: // etcd answers whether the lease of a lost key is valid
		if s.rng.IntN(2) == 0 {
			s.leaseQueries = s.unanswered()
		}
		if len(s.leaseQueries) > 0 {
			q := s.leaseQueries[0]
			s.leaseQueries = s.leaseQueries[1:]
			q.alive = s.rng.IntN(2) == 0
			s.leaseKnown(q)
		}
	case n < 17: // an instance has answered, or has failed to
		if all := s.w.Snapshot().All(); len(all) > 0 {
			in := all[s.rng.IntN(len(all))]
			if canonical, err := instance.ParseAddress(in.Address); err != nil || canonical != in.Address {
				break // an entry shown under another name is not probed
			}
			if in.View == instance.Pending {
				s.onWait(in.Key, verify.Wait{ModRevision: in.ModRevision, Reason: []string{"no", "not yet"}[s.rng.IntN(2)]})
				break
			}
			v := &verify.Answer{Incarnation: in.Incarnation(), Reason: "no answer yet"}
			if s.rng.IntN(2) == 0 {
				v = &verify.Answer{Incarnation: in.Incarnation(), Facts: &instance.Facts{Models: []string{"m"}}}
			}
			s.onAnswer(in.Key, v)
		}
	case n < 18:
		s.dropEnded()
	case n < 19: // another list of the same store, possibly after missed events
		if s.rng.IntN(2) == 0 && now != nil {
			s.rev++
			delete(s.keys, key)
		}
		s.relist()
	default:
		if s.rng.IntN(4) > 0 {
			break
		}
		s.life++ // another store, with part of the keys
		for _, k := range slices.Sorted(maps.Keys(s.keys)) {
			if s.rng.IntN(2) == 0 {
				delete(s.keys, k)
			}
		}
		s.rev++
		s.relist()
	}
}

func (s *simulated) event(kind mvccpb.Event_EventType, kv *mvccpb.KeyValue) {
	s.apply(&clientv3.WatchResponse{
		Header: &etcdserverpb.ResponseHeader{Revision: s.rev},
		Events: []*clientv3.Event{{Type: kind, Kv: kv}},
	})
}

func (s *simulated) relist() {
	l := &etcd.Listing{Revision: s.rev, Cluster: s.life, Schema: 1}
	for _, k := range slices.Sorted(maps.Keys(s.keys)) {
		l.KVs = append(l.KVs, s.keys[k])
	}
	s.load(l)
}

// scratch returns a new table with the same entries, and its first snapshot.
func scratch(t *table, v verify.Facts) (*table, *instance.Snapshot) {
	n := newTable(t.layout)
	for _, e := range t.order {
		c := *e
		c.in, c.old, c.shadowed = nil, false, false
		n.add(&c)
	}
	n.sort()
	n.touchAll()
	n.revision = t.revision
	return n, n.snapshot(v)
}

func values(list []*instance.Instance) []instance.Instance {
	out := make([]instance.Instance, 0, len(list))
	for _, in := range list {
		out = append(out, *in)
	}
	return out
}

// check compares the published state with one that is built from scratch.
func (s *simulated) check(t *testing.T) {
	t.Helper()
	fresh, want := scratch(s.table, *s.facts)
	got := s.w.Snapshot()
	for _, c := range []struct {
		what      string
		got, want []*instance.Instance
	}{
		{"all", got.All(), want.All()},
		{"prefill", got.Usable(instance.Prefill), want.Usable(instance.Prefill)},
		{"decode", got.Usable(instance.Decode), want.Usable(instance.Decode)},
	} {
		a, b := values(c.got), values(c.want)
		require.True(t, reflect.DeepEqual(a, b), "%s at revision %d:\n%+v\nfrom scratch:\n%+v", c.what, s.rev, a, b)
	}
	require.Equal(t, want.Revision, got.Revision)
	require.Equal(t, s.table.applied, s.w.Status().Applied)
	bad := 0
	for _, e := range fresh.order {
		if e.bad() {
			bad++
		}
	}
	require.Equal(t, bad, s.w.Status().Rejected, "unusable")
	for role, n := range s.table.census {
		if n == (census{}) {
			delete(s.table.census, role)
		}
	}
	require.True(t, maps.Equal(s.table.census, fresh.census), "counted %+v, want %+v", s.table.census, fresh.census)
	require.Equal(t, len(fresh.absent), len(s.table.absent), "counted %+v, want %+v", s.table.census, fresh.census)
	require.True(t, maps.Equal(s.table.leases, fresh.leases),
		"keys by lease: %v, want %v", s.table.leases, fresh.leases)
	// The running probes are those that targets returns for the whole table.
	wanted, signs := map[schema.Name]string{}, int64(0)
	for k, target := range s.ask.targets() {
		wanted[k] = target.generation
		if target.liveness {
			signs++
		}
	}
	running := map[schema.Name]string{}
	for k, r := range s.ask.run {
		running[k] = r.generation
	}
	require.True(t, maps.Equal(running, wanted))
	require.Equal(t, signs, s.ask.livenessProbes.Load())
	for k := range s.facts.Instances {
		require.True(t, s.table.find(schema.KindInstance, k) != nil,
			"the answer of %s is kept although it was removed", k)
	}
	for k := range s.facts.Pending {
		require.True(t, s.table.find(schema.KindPending, k) != nil, "the wait of %s is kept although it was removed", k)
	}
	s.seen = append(s.seen, frozenView{got, values(got.All())})
}

// After any sequence of events, with any number of them between two publications, a watcher publishes
// the same as one that has read only the present state. Published snapshots do not change.
func TestPublishedEqualsScratch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		localhost bool // keys with several spellings
	}{{"plain", false}, {"aliases", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(longform.Count(4, 12)) {
				s, names := simulate(t, rand.New(rand.NewPCG(seed, 11)), c.localhost)
				ctx, cancel := context.WithCancel(t.Context())
				s.relist()
				s.publish(ctx)
				for range 250 {
					for range 1 + s.rng.IntN(3) {
						s.step(names)
					}
					if applied, shown := s.w.Status().Applied, s.w.Snapshot().Revision; applied > shown {
						t.Fatalf("applied %d, and the snapshot is of revision %d", applied, shown)
					}
					s.publish(ctx)
					s.check(t)
				}
				for _, f := range s.seen {
					require.True(t, reflect.DeepEqual(f.all, values(f.s.All())),
						"the snapshot at revision %d has changed since it was published", f.s.Revision)
				}
				cancel()
				s.ask.stop()
			}
		})
	}
}

// The state file has every entry of the table that must be saved, and is read as it was written.
func TestStateToSave(t *testing.T) {
	t.Parallel()
	s, names := simulate(t, rand.New(rand.NewPCG(1, 12)), true)
	ctx, cancel := context.WithCancel(t.Context())
	defer s.ask.stop()
	defer cancel()
	names = append(names, "/pd/prefill/<&>\"\\\xff:1", "/pd/override/decode/\u00e9:1")
	s.relist()
	for range 300 {
		s.step(names)
		s.publish(ctx)
		got := s.stateToSave()
		want := &disk.State{Head: got.Head, Entries: []disk.Entry{}}
		for _, e := range s.table.order {
			if e.good && e.Kind != schema.KindPending {
				d := disk.Entry{Key: e.Path(), Value: e.value, Create: e.create, Mod: e.mod, Version: e.version, Lease: e.leased}
				if e.absent != nil {
					d.Absent = map[absenceKind]string{orphaned: disk.Orphan, leaseQueried: disk.Orphan, kept: disk.Kept}[e.absent.kind]
				}
				want.Entries = append(want.Entries, d)
			}
		}
		require.True(t, reflect.DeepEqual(got, want), "got\n%+v\nwant\n%+v", got, want)
	}
	dir, written := t.TempDir(), s.stateToSave()
	require.NoError(t, disk.Write(dir, written))
	read, err := disk.Read(dir, s.table.layout.Root(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, len(written.Entries), len(read.Entries))
	assert.Equal(t, written.Revision, read.Revision)
}
