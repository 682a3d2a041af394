package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestStoreAddAndRemove(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	k := members.Prefill("127.0.0.1:8100")

	if existed, err := s.Instances.Remove(t.Context(), k, ""); err != nil || existed {
		t.Fatal(existed, err)
	}
	resp, err := cli.Get(t.Context(), "/", clientv3.WithPrefix())
	require.True(t, err == nil && len(resp.Kvs) == 0, "the removal of an unknown instance wrote %v, %v", resp.Kvs, err)
	rec := instance.Record{Models: []string{"m"}}
	for _, want := range []store.AddOutcome{store.Added, store.AlreadyThere} {
		if got, err := s.Instances.Add(t.Context(), k, rec, "first"); err != nil || got != want {
			t.Fatalf("add: %s, %v, want %s", got, err, want)
		}
	}
	snap, err := s.Reader.Snapshot(t.Context())
	require.NoError(t, err)
	in, ok := snap.Lookup(k)
	require.True(t, ok && in.Usable() && in.Static() && in.Record.Source == "admin" && in.Version == 1, "%+v", in)
	if existed, err := s.Instances.Remove(t.Context(), k, "broken"); err != nil || !existed {
		t.Fatal(existed, err)
	}
	raw, err := s.Reader.Get(t.Context(), k)
	if err != nil || len(raw) != 1 || raw[0].Key != l.Override(k) || !strings.Contains(string(raw[0].Value), `"removed"`) {
		t.Fatalf("%+v, %v", raw, err)
	}
	if existed, err := s.Instances.Remove(t.Context(), k, ""); err != nil || existed {
		t.Fatalf("the second removal: %t, %v", existed, err)
	}
	if got, err := s.Instances.Add(t.Context(), k, rec, "again"); err != nil || got != store.Added {
		t.Fatal(got, err)
	}
	raw, err = s.Reader.Get(t.Context(), k)
	require.True(t, err == nil && len(raw) == 1 && raw[0].Key == l.Instance(k), "%+v, %v", raw, err)
	log, err := s.Reader.AuditLog(t.Context(), 0)
	require.NoError(t, err)
	var got []string
	for _, e := range log {
		got = append(got, fmt.Sprintf("%s %s %s %s %s", e.Who, e.What, e.Role, e.Address, e.Why))
	}
	want := []string{
		"ann add prefill 127.0.0.1:8100 again",
		"ann remove prefill 127.0.0.1:8100 broken",
		"ann add prefill 127.0.0.1:8100 first",
	}
	assert.Empty(t, cmp.Diff(want, got))
	leases, err := cli.Leases(t.Context())
	if err != nil || len(leases.Leases) > 2 { // two around midnight
		t.Errorf("%d leases for the %d audit entries of a day (%v)", len(leases.Leases), len(want), err)
	}
}

func TestStore_KeepsLeasedRecords(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	k := members.Prefill("127.0.0.1:8100")
	members.Put(t, cli, l.Instance(k), members.Ready, clientv3.WithLease(members.Lease(t, cli, 100)))
	members.Put(t, cli, l.Override(k), `{"v":1,"state":"removed","weight":3}`)
	members.Put(t, cli, l.Pending(k), ``)
	before := members.RawKey(t, cli, k)
	assert.True(t, before.TTL > 0 && before.GrantedTTL == 100*time.Second, "%+v", before)
	if got, err := s.Instances.Add(t.Context(), k, instance.Record{}, ""); err != nil || got != store.AlreadyThere {
		t.Fatal(got, err)
	}
	raw, err := s.Reader.Get(t.Context(), k)
	require.NoError(t, err)
	require.Len(t, raw, 2)
	assert.Equal(t, before.ModRevision, raw[0].ModRevision, "the record was touched")
	assert.Equal(t, before.Lease, raw[0].Lease, "the record was touched")
	if o, err := schema.DecodeOverride(raw[1].Value); err != nil || o.State != "" || o.Weight == nil || *o.Weight != 3 {
		t.Errorf("the override is %s (%v)", raw[1].Value, err)
	}
	if got, err := s.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 0, ""); err != nil || got != store.AlreadyThere {
		t.Fatal(got, err)
	}
}

func TestStore_RefusesUnreadable(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	s := store.New(etcd.Client(t), members.Layout(t), "ann")
	k := members.Prefill("127.0.0.1:8100")
	minus := -1
	for name, rec := range map[string]instance.Record{
		"weight": {Weight: &minus},
		"role":   {Role: instance.Decode},
		"port":   {Address: "127.0.0.1:1"},
		"16384":  {ID: strings.Repeat("x", 20000)},
	} {
		_, err := s.Instances.Add(t.Context(), k, rec, "")
		assert.ErrorContains(t, err, name)
		_, err = s.Instances.AddPending(t.Context(), k, schema.PendingAdd{Record: &rec}, 0, "")
		assert.ErrorContains(t, err, name)
	}
}

func TestStoreSchema(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	k := members.Prefill("127.0.0.1:8100")
	for range 2 {
		require.NoError(t, s.EnsureSchema(t.Context()))
	}
	for value, want := range map[string]error{
		`{"v":1,"future":1}`: nil,
		`{"v":2}`:            schema.ErrNewer,
		`tikv`:               schema.ErrForeign,
		`{}`:                 schema.ErrForeign,
	} {
		members.Put(t, cli, l.Schema(), value)
		assert.ErrorIs(t, s.EnsureSchema(t.Context()), want, "%s: ensure", value)
		_, err := s.Instances.Add(t.Context(), k, instance.Record{}, "")
		assert.ErrorIs(t, err, want, "%s: add", value)
		_, err = s.Instances.Remove(t.Context(), k, "")
		assert.ErrorIs(t, err, want, "%s: remove", value)
		_, err = s.Instances.SyncFlags(t.Context(), "127.0.0.1:8000",
			map[instance.Key]instance.Record{members.Decode("127.0.0.1:1"): {}})
		assert.ErrorIs(t, err, want, "%s: flags", value)
		_, err = s.Reader.Snapshot(t.Context())
		assert.NoError(t, err, "%s: it must stay readable", value)
	}
}

func TestStoreSyncFlags(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "proxy")
	a, b, admin, agent, removed := members.Prefill("127.0.0.1:1"), members.Decode("127.0.0.1:2"), members.Decode("127.0.0.1:3"), members.Decode("127.0.0.1:4"), members.Decode("127.0.0.1:5")
	_, err := s.Instances.Add(t.Context(), admin, instance.Record{}, "")
	require.NoError(t, err)
	members.Put(t, cli, l.Instance(agent), `{"source":"flags"}`, clientv3.WithLease(members.Lease(t, cli, 100)))
	members.Put(t, cli, l.Override(removed), `{"v":1,"state":"removed"}`)
	members.Put(t, cli, l.Instance(members.Prefill("127.0.0.1:6")), `{broken`)
	sync := func(want map[instance.Key]instance.Record, dropped []instance.Key, keys ...instance.Key) *instance.Snapshot {
		t.Helper()
		for range 2 { // the second call has nothing to do
			outcome, err := s.Instances.SyncFlags(t.Context(), "127.0.0.1:8000", want)
			require.NoError(t, err)
			_, asked := want[removed]
			assert.Equal(t, slices.Equal(outcome.Removed, []instance.Key{removed}), asked,
				"wanted and removed: %v, asked for", outcome.Removed)
			assert.Equal(t, dropped, outcome.Dropped)
			dropped = nil
		}
		snap, err := s.Reader.Snapshot(t.Context())
		require.NoError(t, err)
		for _, in := range snap.All() {
			assert.False(t, in.Record.Source == "flags" && in.Static() && in.Version > 2,
				"%s was written %d times", in.Key, in.Version)
		}
		assert.Len(t, snap.All(), len(keys)+1, "instances")
		for _, k := range keys {
			_, ok := snap.Lookup(k)
			assert.True(t, ok, "%s is missing", k)
		}
		return snap
	}
	sync(map[instance.Key]instance.Record{a: {}, b: {}, removed: {}}, nil, a, b, admin, agent)
	snap := sync(map[instance.Key]instance.Record{a: {Connector: "nixl"}, admin: {}}, []instance.Key{b}, a, admin, agent)
	in, _ := snap.Lookup(a)
	assert.True(t, in.Record.Connector == "nixl" && in.Record.Source == "flags" && in.Version == 2, "%+v", in)
	in, _ = snap.Lookup(admin)
	assert.Equal(t, "admin", in.Record.Source, in)
	sync(nil, []instance.Key{a}, admin, agent)
}

// Many writers add and remove the same instance: every call ends
// with a defined outcome, and the remaining keys are consistent.
func TestStoreConcurrentWriters(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	k := members.Prefill("127.0.0.1:8100")
	var wg sync.WaitGroup
	for i := range 4 {
		s := store.New(etcd.Client(t), l, fmt.Sprintf("writer-%d", i))
		wg.Go(func() {
			for n := range 10 {
				var err error
				if (i+n)%2 == 0 {
					_, err = s.Instances.Add(context.Background(), k, instance.Record{}, "")
				} else {
					_, err = s.Instances.Remove(context.Background(), k, "")
				}
				assert.False(t, err != nil && !errors.Is(err, store.ErrBusy), err)
			}
		})
	}
	wg.Wait()
	raw, err := store.New(cli, l, "x").Reader.Get(t.Context(), k)
	require.NoError(t, err, "record and removal together, or neither")
	require.Len(t, raw, 1, "record and removal together, or neither")
}

// The keys of one membership are returned whatever the spelling of its address, the canonical ones first.
func TestGetOtherSpellings(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	k := instance.Key{Role: instance.Decode, Address: "node7:8200"}
	typed := instance.Key{Role: instance.Decode, Address: "Node7:8200"}
	other := instance.Key{Role: instance.Decode, Address: "NODE7:8200"}
	for _, key := range []string{l.Override(k), l.Instance(typed), l.Pending(typed), l.Pending(other), l.Instance(members.Decode("127.0.0.1:8200"))} {
		_, err := cli.Put(t.Context(), key, `{"v":1}`)
		require.NoError(t, err)
	}
	raw, err := store.New(cli, l, "x").Reader.Get(t.Context(), k)
	require.NoError(t, err)
	var got []string
	for _, r := range raw {
		got = append(got, r.Key)
	}
	assert.Empty(t, cmp.Diff([]string{l.Override(k), l.Instance(typed), l.Pending(typed), l.Pending(other)}, got))
}

func TestErrors_SuggestFix(t *testing.T) {
	t.Parallel()
	l := members.Layout(t)
	ctx, cancel := context.WithTimeout(t.Context(), members.Soon)
	defer cancel()
	unused := testkit.FreePort(t)
	_, err := etcd.Ping(ctx, members.Dial(t, unused), l)
	if !errors.Is(err, etcd.ErrUnreachable) || !strings.Contains(err.Error(), unused) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("unused port: %v", err)
	}
	server := etcdtest.Start(t)
	link := testkit.StartLink(t, server.Endpoint())
	cli := members.Dial(t, link.Address())
	rev, err := etcd.Ping(ctx, cli, l)
	if err != nil || rev < 1 {
		t.Fatal(rev, err)
	}
	link.Freeze()
	_, err = etcd.Ping(ctx, cli, l)
	assert.True(t, errors.Is(err, etcd.ErrUnreachable) && strings.Contains(err.Error(), "does not answer as etcd"),
		"frozen: %v", err)
	if _, err := store.New(cli, l, "x").Reader.Snapshot(ctx); !errors.Is(err, etcd.ErrUnreachable) || !strings.Contains(err.Error(), link.Address()) {
		t.Errorf("list: %v", err)
	}
	link.Restore()
	for _, bad := range []string{"", "host", "http://", "host:port", "host:0", "ftp://h:1", "http://h:1/path", "h:99999"} {
		if _, err := etcd.Dial(etcd.Config{Endpoints: []string{bad}}); !errors.Is(err, access.ErrEndpoint) {
			t.Errorf("endpoint %q: %v", bad, err)
		}
	}
	_, err = etcd.Dial(etcd.Config{})
	assert.ErrorIs(t, err, access.ErrEndpoint, "no endpoint")
}

func TestStoreKeys(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	for _, k := range []instance.Key{members.Prefill("localhost:8100"), members.Prefill("0.0.0.0:1"), members.Prefill("x"), {Role: "all", Address: "127.0.0.1:1"}} {
		_, err := s.Instances.Add(t.Context(), k, instance.Record{}, "")
		assert.Error(t, err, "%s was added", k)
		_, err = s.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 0, "")
		assert.Error(t, err, "%s was added", k)
	}
	// Invalid keys that other programs wrote can be removed by the address that is shown.
	members.Put(t, cli, l.Root()+"prefill/0.0.0.0:8100", "")
	members.Put(t, cli, l.Root()+"prefill/\x1b[2J:1", "")
	snap, err := s.Reader.Snapshot(t.Context())
	if err != nil || len(snap.All()) != 2 {
		t.Fatal(snap, err)
	}
	for _, in := range snap.All() {
		if existed, err := s.Instances.Remove(t.Context(), in.Key, ""); err != nil || !existed {
			t.Errorf("%s: %t, %v", in.Key, existed, err)
		}
	}
	resp, err := cli.Get(t.Context(), l.Root(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		assert.False(t, key != l.Schema() && !strings.HasPrefix(key, l.Audit("")), "left: %q", key)
	}
}

func TestMain(m *testing.M) {
	leak.Main(m)
}
