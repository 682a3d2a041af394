package faults_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// quick returns watcher options with intervals that suit a test.
func quick() watch.Options {
	return watch.Options{CheckInterval: 100 * time.Millisecond, WaitingInterval: 50 * time.Millisecond}
}

// The revisions that a watcher missed were compacted before it reconnected: it lists all keys again,
// and no snapshot lacks an instance that remained.
func TestFault13_Compaction(t *testing.T) {
	row(t, 13)
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	link := testkit.StartLink(t, etcd.Endpoint())
	o := quick()
	o.CheckInterval = time.Hour // the end of the watch alone must be enough
	w := watching(t, etcdtest.Client(t, link.Address()), o)
	var kept []instance.Key
	for i := range 50 {
		kept = append(kept, prefillAt(i), decodeAt(i))
		members.Put(t, cli, l.Instance(prefillAt(i)), members.Ready)
		members.Put(t, cli, l.Instance(decodeAt(i)), members.Ready)
	}
	left, came := prefillAt(100), prefillAt(101)
	members.Put(t, cli, l.Instance(left), members.Ready)
	awaitUsable(t, w, left)
	members.WaitState(t, w, watch.Live)
	members.NeverWithout(t, w, kept...)
	link.Cut()
	if _, err := cli.Delete(t.Context(), l.Instance(left)); err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Compact(t.Context(), members.Put(t, cli, l.Instance(came), members.Ready)); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.Snapshot().Lookup(left); !ok {
		t.Error("an instance went away while the watch was cut off")
	}
	link.Restore()
	awaitUsable(t, w, came)
	members.WaitFor(t, w, left, nil)
	members.WaitState(t, w, watch.Live)
	s := w.Status()
	assert.True(t, s.WatchEnds["compacted"] != 0 && s.Lists >= 2, "the watcher met no compaction: %+v", s)
	members.Put(t, cli, l.Instance(prefillAt(102)), members.Ready)
	awaitUsable(t, w, prefillAt(102))
}

// One invalid value costs one entry, or none if a valid value was known.
func TestFault18_BadValues(t *testing.T) {
	row(t, 18)
	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	w := watching(t, members.Dial(t, etcd.Endpoint()), quick())
	good := prefillAt(1)
	members.Put(t, cli, l.Instance(good), members.Ready)
	awaitUsable(t, w, good)
	members.NeverWithout(t, w, good)
	for i, c := range []struct{ name, key, value string }{
		{"broken JSON", l.Instance(prefillAt(10)), `{"v":1,`},
		{"not an object", l.Instance(prefillAt(11)), `[1,2]`},
		{"wrong type", l.Instance(prefillAt(12)), `{"v":1,"models":"m"}`},
		{"1 MiB", l.Instance(prefillAt(13)), `{"v":1,"labels":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`},
		{"binary value", l.Instance(prefillAt(14)), "\x00\xff\xfe\x1b[2J"},
		{"another role", l.Instance(prefillAt(15)), `{"v":1,"role":"decode","models":["m"]}`},
		{"another port", l.Instance(prefillAt(16)), `{"v":1,"address":"10.0.0.16:1","models":["m"]}`},
		{"negative weight", l.Instance(prefillAt(17)), `{"v":1,"weight":-1,"models":["m"]}`},
		{"binary key", l.Root() + "prefill/\xff\x00:80", members.Ready},
		{"no port", l.Root() + "prefill/10.0.0.18", members.Ready},
		{"wildcard", l.Root() + "prefill/0.0.0.0:80", members.Ready},
		{"an unknown segment", l.Root() + "new-thing/x", "?"},
		{"broken override", l.Override(prefillAt(19)), `{"state":`},
	} {
		members.Put(t, cli, c.key, c.value)
		after := decodeAt(100 + i)
		members.Put(t, cli, l.Instance(after), members.Ready)
		awaitUsable(t, w, after) // events after the invalid one arrive
		for _, in := range w.Snapshot().All() {
			assert.False(t, in.Usable() && in.Key != good && in.Role == instance.Prefill, "%s: %+v is usable", c.name, in)
			assert.False(t, strings.ContainsAny(in.Reason, "\x00\x1b"),
				"%s: control characters in the reason %q", c.name, in.Reason)
		}
	}
	s := w.Status()
	assert.True(t, s.Rejected >= 9 && s.State == watch.Live, "status: %+v", s)
	// A newer version is read as far as its fields are known.
	members.Put(t, cli, l.Instance(prefillAt(30)), `{"v":7,"id":"N","models":["m"],"state":"ready","something":{"new":1}}`)
	awaitUsable(t, w, prefillAt(30))
	// A known instance keeps its last valid value and shows the error.
	members.Put(t, cli, l.Instance(good), `{"v":1,`)
	members.WaitFor(t, w, good, members.Is(func(in *instance.Instance) bool { return in.Usable() && in.Reason != "" }))
}

// The password, role or token of a proxy becomes invalid: the last membership remains in use, the
// error is reported, and no restart is needed once it is repaired.
func TestFault20_Auth(t *testing.T) {
	longform.Test(t)
	row(t, 20)
	const user, password = "pd", "secret"
	server := etcdtest.Start(t, etcdtest.WithArgs("--auth-token-ttl", "2"))
	l := members.Layout(t)
	root := etcdtest.EnableAuth(t, server.Client(t), user, password, l.Root())
	cli, err := etcd.Dial(etcd.Config{Endpoints: []string{server.Endpoint()}, Username: user, Password: password})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	k, n := prefillAt(1), 1
	members.Put(t, root, l.Instance(k), members.Ready)
	w := watching(t, cli, quick())
	awaitUsable(t, w, k)
	members.NeverWithout(t, w, k)
	r := register(t, cli, decodeAt(1), ttl)
	follows := func() {
		t.Helper()
		n++
		members.Put(t, root, l.Instance(prefillAt(n)), members.Ready)
		awaitUsable(t, w, prefillAt(n))
	}
	follows()
	wait(t, 5*time.Second) // the token, valid for two seconds, has expired by now
	follows()

	for _, fault := range authFaults(user, password, l.Root()) {
		require.NoError(t, fault.break_(t.Context(), root))
		testkit.Until(t, soon, w.Status, func(s watch.Status) bool { return s.State != watch.Live && s.LastError != "" })
		require.NoError(t, fault.mend(t.Context(), root))
		mended := time.Now()
		members.WaitState(t, w, watch.Live)
		follows()
		measured(t, 20, fault.name+": mended to following again", time.Since(mended), 5*time.Second)
		members.WaitPhase(t, r, lease.Registered)
	}
	if s := w.Status(); s.WatchEnds["canceled"] != 0 {
		t.Errorf("watch ends without a known reason: %v, last error %q", s.WatchEnds, s.LastError)
	}
}

// Two agents on two hosts have the same address: the second does not register and reports why.
func TestFault21_TwoAgents(t *testing.T) {
	row(t, 21)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, prefill: 1, decode: 1, ttl: longer})
	cli, first := etcd.Client(t), r.decode[0]
	read := func() (string, int64) {
		t.Helper()
		resp, err := cli.Get(t.Context(), keyOf(t, first))
		require.True(t, err == nil && len(resp.Kvs) == 1, "%v, %v", resp, err)
		return string(resp.Kvs[0].Value), resp.Kvs[0].ModRevision
	}
	value, revision := read()
	socket := t.TempDir() + "/second.sock"
	if _, err := r.f.Start(t.Context(), fleetAgent(first, etcd.Endpoint(), socket, "--host-id", "another-host")); err != nil {
		t.Fatal(err)
	}
	c := agentctl.NewClient(socket)
	testkit.Eventually(t, soon, func() error {
		rep, err := c.Status(t.Context())
		if err != nil || rep.Registration.Phase != string(lease.Conflict) || rep.Registration.Conflicts != 1 {
			return fmt.Errorf("%+v, %w", rep.Registration, err)
		}
		if err := rep.Health(); !errors.Is(err, agentctl.ErrNotServing) || !contains(err.Error(), "another host") {
			t.Errorf("health of the second: %v", err)
		}
		return nil
	})
	wait(t, 2*ttl) // it retries once in each of its TTLs
	if v, rev := read(); v != value || rev != revision {
		t.Errorf("the record changed from %s at %d to %s at %d", value, revision, v, rev)
	}
	require.NoError(t, first.Agent.Kill()) // the lease expires, then the second may register
	testkit.Eventually(t, soon, func() error {
		rep, err := c.Status(t.Context())
		if err != nil {
			return err
		}
		return registrationIs(lease.Registered)(rep)
	})
}

// A key is deleted manually while its agent runs: the instance is dropped at once, does not become an
// orphan, and is registered again by the agent's check.
func TestFault30_DeletedByHand(t *testing.T) {
	row(t, 30)
	etcd := etcdtest.Start(t)
	ttl := lastingTTL()
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, ttl: ttl})
	cli, victim := etcd.Client(t), r.decode[1]
	before := keys(t, cli)[keyOf(t, victim)]
	l, p := r.load(), r.startPool()
	h := record(t, cli, keyOf(t, victim))
	deleted := time.Now()
	if _, err := cli.Delete(t.Context(), keyOf(t, victim)); err != nil {
		t.Fatal(err)
	}
	r.awaitEntry(victim.Address, func(in instance.Listing, ok bool) bool { return !ok || in.Revision != before.Mod }) // removed, or already registered again
	measured(t, 30, "deletion to out", time.Since(deleted), 0)
	r.awaitAll()
	measured(t, 30, fmt.Sprintf("deletion to served again (TTL %.0f s)", ttl.Seconds()), time.Since(deleted), 0)
	if after := keys(t, cli)[keyOf(t, victim)]; after.Lease != before.Lease || after.Create == before.Create {
		t.Errorf("before %+v, after %+v, history %+v", before, after, h.of(keyOf(t, victim)))
	}
	l.Served(20)
	l.Finish()
	p.end()
	assert.False(t, p.sawView(victim.Address, instance.Orphan), "it became an orphan")
}
