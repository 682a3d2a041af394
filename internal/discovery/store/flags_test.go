package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

const one, two = "127.0.0.1:8000", "127.0.0.1:9000"

// fleets is an etcd with the instances of several proxies.
type fleets struct {
	t     *testing.T
	cli   *clientv3.Client
	l     schema.Layout
	store *store.Store
}

func newFleets(t *testing.T) *fleets {
	t.Helper()
	cli := etcdtest.Start(t).Client(t)
	return &fleets{t: t, cli: cli, l: members.Layout(t), store: store.New(cli, members.Layout(t), "test")}
}

func (f *fleets) sync(proxy string, keys ...instance.Key) store.FlagsOutcome {
	f.t.Helper()
	want := map[instance.Key]instance.Record{}
	for _, k := range keys {
		want[k] = instance.Record{Connector: "plain"}
	}
	outcome, err := f.store.Instances.SyncFlags(f.t.Context(), proxy, want)
	require.NoError(f.t, err)
	return outcome
}

// proxies returns the proxies that an instance belongs to; "none" if it does not exist.
func (f *fleets) proxies(k instance.Key) []string {
	f.t.Helper()
	snap, err := f.store.Reader.Snapshot(f.t.Context())
	require.NoError(f.t, err)
	in, ok := snap.Lookup(k)
	if !ok {
		return []string{"none"}
	}
	return in.Record.Proxies
}

func (f *fleets) are(k instance.Key, want ...string) {
	f.t.Helper()
	assert.Equal(f.t, want, f.proxies(k), "%s belongs to", k)
}

// Two proxies have instances on their command lines. Each adds and removes
// only its instances; an instance of both remains until neither names it.
func TestSyncFlagsOfTwoProxies(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	a, b, shared := members.Prefill("127.0.0.1:1"), members.Prefill("127.0.0.1:2"), members.Decode("127.0.0.1:3")
	f.sync(one, a, shared)
	outcome := f.sync(two, b, shared)
	assert.True(t, len(outcome.Dropped) == 0 && len(outcome.Differ) == 0, "%+v", outcome)
	f.are(a, one)
	f.are(b, two)
	f.are(shared, one, two)
	assert.Equal(t, []instance.Key{shared}, f.sync(one, a).Dropped)
	f.are(shared, two)
	f.are(b, two)
	outcome, err := f.store.Instances.SyncFlags(t.Context(), one, map[instance.Key]instance.Record{shared: {Connector: "nixl"}})
	if err != nil || !slices.Equal(outcome.Differ, []instance.Key{shared}) || !slices.Equal(outcome.Dropped, []instance.Key{a}) {
		t.Errorf("%+v, %v", outcome, err)
	}
	f.are(shared, two, one)
	f.are(a, "none")
	if snap, err := f.store.Reader.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	} else if in, _ := snap.Lookup(shared); in.Record.Connector != "plain" {
		t.Errorf("another command line's connector has changed: %+v", in.Record)
	}
	f.sync(two, b)
	f.are(shared, one)
	f.sync(one, a)
	f.are(shared, "none")
	// After a move to an etcd of several machines, it is still the same proxy.
	f.sync("gpu1/"+one, a)
	f.are(a, "gpu1/"+one)

	log, err := f.store.Reader.AuditLog(t.Context(), 0)
	require.NoError(t, err)
	slices.Reverse(log)
	var of []string // the reasons for changes of shared
	for _, e := range log {
		if e.Address == shared.Address {
			of = append(of, e.Why)
		}
	}
	given, dropped := "given on the command line of ", "no longer on the command line of "
	want := []string{given + one, given + two, dropped + one, given + one, dropped + two, dropped + one}
	assert.True(t, slices.Equal(of, want), "audit log: %q, want %q", of, want)
}

// Records of an earlier release belong to no proxy. The proxy
// that has them on its command line takes them over.
func TestSyncFlagsTakesOverOldRecords(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	a, b := members.Prefill("127.0.0.1:1"), members.Prefill("127.0.0.1:2")
	for _, k := range []instance.Key{a, b} {
		members.Put(t, f.cli, f.l.Instance(k), `{"v":1,"source":"flags"}`)
	}
	assert.Equal(t, []instance.Key{b}, f.sync(one, a).Dropped)
	f.are(a, one)
	f.are(b, "none")
}

// An instance that is added for some proxies belongs to them; a further
// add adds its proxy. One that pdctl adds belongs to all proxies.
func TestAddForSomeProxies(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	k := members.Prefill("127.0.0.1:1")
	add := func(want store.AddOutcome, proxies ...string) {
		t.Helper()
		got, err := f.store.Instances.Add(t.Context(), k, instance.Record{Proxies: proxies}, "")
		assert.True(t, err == nil && got == want, "add for %v: %s, %v", proxies, got, err)
	}
	add(store.Added, one)
	f.are(k, one)
	add(store.AlreadyThere, one)
	add(store.Added, two)
	f.are(k, one, two)
	f.sync(two, k) // it is now on the command line and was added, too
	f.sync(two, members.Decode("127.0.0.1:9"))
	f.are(k, one, two)
	left, kept, err := f.store.Instances.Leave(t.Context(), k, []string{one}, "")
	assert.True(t, err == nil && left && kept, "%t, %t, %v", left, kept, err)
	f.are(k, two)
	left, kept, err = f.store.Instances.Leave(t.Context(), k, []string{two}, "")
	assert.True(t, err == nil && !left && !kept, "the last one leaves: %t, %t, %v", left, kept, err)
	f.are(k, two)
	add(store.Added)
	f.are(k)
	f.sync(two, members.Decode("127.0.0.1:9"))
	f.are(k)
	// An agent's instance belongs to all proxies, whatever their command lines name.
	agent := members.Decode("127.0.0.1:4")
	members.Put(t, f.cli, f.l.Instance(agent), `{"v":1}`, clientv3.WithLease(members.Lease(t, f.cli, 100)))
	f.sync(two, agent)
	f.are(agent)
}

// Adding an instance of other proxies that does not answer makes it this proxy's, too.
func TestAddPendingForSomeProxies(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	k := members.Prefill("127.0.0.1:1")
	f.sync(one, k)
	for range 2 {
		got, err := f.store.Instances.AddPending(t.Context(), k, schema.PendingAdd{Record: &instance.Record{Proxies: []string{two}}}, 0, "")
		require.NoError(t, err)
		assert.Equal(t, store.AlreadyThere, got)
		f.are(k, one, two)
	}
	got, err := f.store.Instances.AddPending(t.Context(), k, schema.PendingAdd{}, 0, "")
	assert.True(t, err == nil && got == store.AlreadyThere, "%s, %v", got, err)
	f.are(k)
}

// Several fleets may wait for one instance: an add by any of them, or by pdctl, adds it for the others, too.
func TestAddPendingByAnotherProxy(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	const three = "127.0.0.1:7000"
	wait := func(k instance.Key, proxies ...string) {
		t.Helper()
		p := schema.PendingAdd{Record: &instance.Record{Proxies: proxies}}
		got, err := f.store.Instances.AddPending(t.Context(), k, p, 0, "")
		require.True(t, err == nil && got == store.Waiting, "%s, %v", got, err)
	}
	add := func(k instance.Key, proxies ...string) {
		t.Helper()
		got, err := f.store.Instances.Add(t.Context(), k, instance.Record{Proxies: proxies}, "")
		assert.True(t, err == nil && got == store.Added, "%s, %v", got, err)
	}
	added, onCommandLine, everybody := members.Prefill("127.0.0.1:1"), members.Prefill("127.0.0.1:2"), members.Prefill("127.0.0.1:3")
	for _, k := range []instance.Key{added, onCommandLine} {
		wait(k, one)
		wait(k, two)
		wait(k, one)
	}
	add(added, three)
	f.are(added, one, two, three)
	f.sync(three, onCommandLine)
	f.are(onCommandLine, one, two, three)
	wait(everybody)
	wait(everybody, one)
	f.sync(two, onCommandLine, everybody)
	f.are(everybody)
}

// A proxy that withdraws its pending add of an instance does not withdraw that of other proxies.
func TestLeavePending(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	k := members.Prefill("127.0.0.1:1")
	for _, proxy := range []string{one, two} {
		p := schema.PendingAdd{Record: &instance.Record{Proxies: []string{proxy}}}
		got, err := f.store.Instances.AddPending(t.Context(), k, p, time.Hour, "")
		require.True(t, err == nil && got == store.Waiting, "%s, %v", got, err)
	}
	before := pendingOf(t, f, k)
	left, kept, err := f.store.Instances.Leave(t.Context(), k, []string{one}, "")
	assert.True(t, err == nil && left && kept, "%t, %t, %v", left, kept, err)
	after := pendingOf(t, f, k)
	if p, err := schema.DecodePending(k, after.Value); err != nil || !slices.Equal(p.Record.Proxies, []string{two}) {
		t.Errorf("it waits for %s, %v", after.Value, err)
	}
	assert.True(t, after.Lease != 0 && after.Lease == before.Lease, "lease %x, it was %x", after.Lease, before.Lease)
	left, kept, err = f.store.Instances.Leave(t.Context(), k, []string{two}, "")
	assert.True(t, err == nil && !left && !kept, "the last one leaves: %t, %t, %v", left, kept, err)
}

func pendingOf(t *testing.T, f *fleets, k instance.Key) *mvccpb.KeyValue {
	t.Helper()
	resp, err := f.cli.Get(t.Context(), f.l.Pending(k))
	require.NoError(t, err, "the pending add")
	require.Len(t, resp.Kvs, 1, "the pending add")
	return resp.Kvs[0]
}

// Changing names of one proxy, as containers have them, do not fill the record.
func TestNamesOfProxiesAreBounded(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	k := members.Prefill("127.0.0.1:1")
	for i := range 40 {
		f.sync(fmt.Sprintf("pod-%d/0.0.0.0:8000", i), k)
	}
	got := f.proxies(k)
	require.Len(t, got, 32)
	assert.Equal(t, "pod-39/0.0.0.0:8000", got[31])
}

// A full record accepts another proxy, too, by an add and by a command line.
func TestFullRecord_AcceptsAnotherProxy(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	k := members.Prefill("127.0.0.1:1")
	name := func(i int) string { return fmt.Sprintf("pod-%d/0.0.0.0:8000", i) }
	for i := range 33 {
		got, err := f.store.Instances.Add(t.Context(), k, instance.Record{Proxies: []string{name(i)}}, "")
		if err != nil || got != store.Added {
			t.Errorf("add for %s: %s, %v", name(i), got, err)
		}
	}
	f.sync(name(33), k)
	got := f.proxies(k)
	assert.True(t, len(got) == 32 && got[30] == name(32) && got[31] == name(33), "%d names: %v", len(got), got)
}

// A proxy shows the instances of other proxies, and uses its own and those of all proxies.
func TestWatcherOfOneFleet(t *testing.T) {
	t.Parallel()
	f := newFleets(t)
	mine, theirs, both, everybody := members.Prefill("127.0.0.1:1"), members.Prefill("127.0.0.1:2"), members.Prefill("127.0.0.1:3"), members.Prefill("127.0.0.1:4")
	f.sync(one, mine, both)
	f.sync(two, theirs, both)
	members.Put(t, f.cli, f.l.Instance(everybody), `{"v":1,"models":["m"]}`, clientv3.WithLease(members.Lease(t, f.cli, 100)))
	o := members.WatcherOptions(t)
	prober := members.NewProber()
	for _, k := range []instance.Key{mine, theirs, both, everybody} {
		prober.Answer(k.Address, "m")
	}
	o.Prober, o.Proxy = prober, one
	w := members.Watch(t, f.cli, o)
	members.WaitFor(t, w, mine, members.Usable)
	members.WaitFor(t, w, both, members.Usable)
	members.WaitFor(t, w, everybody, members.Usable)
	members.WaitFor(t, w, theirs, members.HasView(instance.Elsewhere))
	n := prober.Count(theirs.Address)
	assert.LessOrEqual(t, n, 0, "an instance of another fleet was asked %d times", n)
	// Its proxy changes, its incarnation does not.
	f.sync(two, mine, theirs)
	f.sync(one, theirs)
	members.WaitFor(t, w, theirs, members.Usable)
	members.WaitFor(t, w, mine, members.HasView(instance.Elsewhere))
	all := members.WatcherOptions(t)
	all.Prober = prober
	general := members.Watch(t, f.cli, all)
	members.WaitFor(t, general, mine, members.Usable)
	members.WaitFor(t, general, theirs, members.Usable)
}
