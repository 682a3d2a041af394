package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/test/harness"
)

// awaitAgreement waits until every proxy shows every agent's instance at the current revision of its key in
// etcd.
func (r *rig) awaitAgreement(cli *clientv3.Client) {
	r.t.Helper()
	r.awaitStatus(func(s status) error {
		now := keys(r.t, cli)
		for _, n := range r.nodes() {
			in, ok := s.entry(n.Address)
			if mod := now[keyOf(r.t, n)].Mod; !ok || in.View != "" || mod == 0 || in.Revision != mod {
				return fmt.Errorf("%s is %+v, etcd has %d; %s %s", n.Address, in, mod, s.Etcd.State, s.Etcd.LastError)
			}
		}
		return nil
	})
}

// etcd loses its data and restarts with the same identity. The watch does not detect this; the audit
// does, because the revision decreases.
func TestFault11_Wiped(t *testing.T) {
	row(t, 11)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxies: 2, proxyArgs: []string{"--audit-interval", "2s"}})
	cli := etcd.Client(t)
	for range 300 { // so that the new store's revision stays below the old one
		members.Put(t, cli, "/elsewhere", "x")
	}
	l, p := r.load(), r.startPool()
	etcd.Wipe()
	etcd.Restart()
	back := time.Now()
	r.awaitAgreement(etcd.Client(t))
	measured(t, 11, "wiped etcd back to all proxies agreeing with it (audit 2 s)", time.Since(back), audit+time.Second)
	for _, proxy := range r.proxies {
		testkit.Eventually(t, soon/2, func() error { // the next list is due after about a minute
			all, _ := digests(t, proxy)
			for id, d := range all {
				if d.Applied >= 300 {
					return fmt.Errorf("%s knows the digest of %s from the former store: %+v", proxy.Name(), id, d)
				}
			}
			if len(all) != len(r.proxies) {
				return fmt.Errorf("%s knows %d digests", proxy.Name(), len(all))
			}
			return nil
		})
	}
	l.Served(20)
	p.finish(l, 2)
	if s, err := fetchStatus(t.Context(), r.proxies[0]); err != nil || s.Revision >= 300 {
		t.Errorf("the proxy is at revision %d of a store that has fewer, %v", s.Revision, err)
	}
}

// As above, but no agent has registered again when the new store is first listed: the list is empty
// and valid, and must not be believed.
func TestFault11_WipedAndEmpty(t *testing.T) {
	row(t, 11)
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	o := quick()
	o.Prober = alive{}
	w := watching(t, members.Dial(t, etcd.Endpoint()), o)
	const n = 10
	registerMany(t, cli, n, 600)
	awaitCount(t, w, n)
	members.WaitState(t, w, watch.Live)
	all := keysTo(n)
	members.NeverWithout(t, w, all...)
	etcd.Wipe()
	etcd.Restart()
	members.Put(t, etcd.Client(t), members.Layout(t).Schema(), `{"v":1}`)
	testkit.Until(t, soon, w.Status, func(s watch.Status) bool { return s.Epochs != 0 && s.State == watch.Live })
	for _, in := range w.Snapshot().All() {
		assert.Equal(t, instance.Orphan, in.View, "%s is shown as", in.Key)
	}
}

// The new store has passed the old revision before the proxy's watch resumes: no revision decreases,
// and only the keys show the change.
func TestFault12_WipedAndNewerRevision(t *testing.T) {
	row(t, 12)
	etcd := etcdtest.Start(t)
	link := testkit.StartLink(t, etcd.Endpoint())
	r := build(t, plan{etcd: []string{link.Address()}, agents: []string{etcd.Endpoint()}, proxyArgs: []string{"--audit-interval", "2s"}})
	old, err := fetchStatus(t.Context(), r.proxies[0])
	require.NoError(t, err)
	l, p := r.load(), r.startPool()
	link.Cut()
	etcd.Wipe()
	etcd.Restart()
	cli := etcd.Client(t)
	for _, n := range r.nodes() {
		r.awaitAgent(n, registrationIs(lease.Registered))
	}
	for rev := int64(0); rev < old.Revision+500; {
		rev = members.Put(t, cli, "/elsewhere", "x")
	}
	link.Restore()
	back := time.Now()
	r.awaitAgreement(cli)
	measured(t, 12, "contact lost: line restored to agreeing with etcd (audit 2 s)", time.Since(back), 2*audit)
	l.Served(20)
	p.finish(l, 2)
}

// As above, but contact is never lost: the address of etcd switches to a store of the same identity
// that was wiped, has all instances registered again and has passed the old revision. The watch
// resumes without events, every request is answered and no revision decreases: only the audit's
// comparison of the keys can detect it.
func TestFault12_WipedWhileConnected(t *testing.T) {
	row(t, 12)
	before, after := etcdtest.Start(t), etcdtest.Start(t)
	link := testkit.StartLink(t, before.Endpoint())
	w := watching(t, members.Dial(t, link.Address()), watch.Options{
		Prober: alive{}, AuditInterval: audit, CheckInterval: time.Hour,
	})
	const n = 10
	old, wiped := before.Client(t), after.Client(t)
	registerMany(t, old, n, 600)
	awaitCount(t, w, n)
	members.WaitState(t, w, watch.Live)
	all := keysTo(n)
	members.NeverWithout(t, w, all...)
	last := members.Put(t, old, "/elsewhere", "x")
	members.Put(t, wiped, "/elsewhere", "x") // so that no instance has its old revision
	registerMany(t, wiped, n, 600)
	for rev := int64(0); rev < last+500; {
		rev = members.Put(t, wiped, "/elsewhere", "x")
	}
	a, b := identity(t, old), identity(t, wiped)
	require.True(t, a == b, "the two stores have different identities %v and %v", a, b)
	// Right after an audit: one in progress would be cut and counted as an error.
	audits := w.Status().Audits
	testkit.Until(t, soon, func() int64 { return w.Status().Audits }, func(n int64) bool { return n != audits })
	was := w.Status() // on a busy machine audits may have found drift before
	link.Redirect(after.Endpoint())
	began := time.Now()
	l := members.Layout(t)
	testkit.Eventually(t, soon, func() error {
		now := keys(t, wiped)
		for _, k := range all {
			in, ok := w.Snapshot().Lookup(k)
			if f := now[l.Instance(k)]; !ok || in.ModRevision != f.Mod || in.CreateRevision != f.Create || in.Lease != f.Lease {
				return fmt.Errorf("%s is %+v, etcd has %+v; %+v", k, in, f, w.Status())
			}
		}
		return nil
	})
	measured(t, 12, "contact never lost: new store to agreeing with it (audit 2 s)", time.Since(began), 2*audit)
	s := w.Status()
	if drift, lists := s.Drift-was.Drift, s.Lists-was.Lists; drift < 1 || lists < 1 || lists > drift {
		t.Errorf("the audit's comparison did not detect it: %+v, before %+v", s, was)
	}
	failed := func(s watch.Status) int64 { return s.AuditErrors + s.CheckErrors + s.ListErrors }
	assert.True(t, failed(s) == failed(was) && s.Checks == 0,
		"contact was lost, or another request failed: %+v, before %+v", s, was)
	assert.EqualValues(t, 1, s.Epochs, "it was not recognized as another store: %+v", s)
}

// identity returns the cluster ID and the member ID of the store behind a client.
func identity(t testing.TB, cli *clientv3.Client) [2]uint64 {
	t.Helper()
	resp, err := cli.Get(t.Context(), "/elsewhere")
	require.NoError(t, err)
	return [2]uint64{resp.Header.ClusterId, resp.Header.MemberId}
}

// A wipe while static instances, an override and a removal exist: they remain in effect until an
// operator changes them, and a removed instance never returns.
func TestFault29_WipedWithIntent(t *testing.T) {
	longform.Test(t)
	row(t, 29)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, decode: 3, proxyArgs: []string{"--audit-interval", "2s"}})
	cli, lay := etcd.Client(t), members.Layout(t)
	for range 300 {
		members.Put(t, cli, "/elsewhere", "x")
	}
	static := r.bare(instance.Decode, "static")
	harness.Add(t, r.url(), adminKey, "decode", static.Address)
	r.awaitStatus(func(s status) error {
		if !slices.Contains(s.DecodeNodes, static.Address) {
			return fmt.Errorf("%s is not served", static.Address)
		}
		return nil
	})
	removed, drained := r.decode[2], r.decode[1]
	key := func(n *fleet.Node) instance.Key { return instance.Key{Role: n.Spec.Role, Address: n.Address} }
	if _, err := store.New(cli, lay, "test").Instances.Remove(t.Context(), key(removed), "broken"); err != nil {
		t.Fatal(err)
	}
	members.Put(t, cli, lay.Override(key(drained)), `{"v":1,"state":"drain","reason":"row 29"}`)
	enforced := func(s status) error {
		d, _ := s.entry(drained.Address)
		switch {
		case slices.Contains(s.DecodeNodes, removed.Address):
			return fmt.Errorf("the removed %s is served", removed.Address)
		case slices.Contains(s.DecodeNodes, drained.Address), d.Intent != instance.Drain:
			return fmt.Errorf("the drained %s is %+v", drained.Address, d)
		case !slices.Contains(s.DecodeNodes, static.Address):
			return fmt.Errorf("the static %s is not served", static.Address)
		}
		return nil
	}
	r.awaitStatus(enforced)
	l, p := r.load(), r.startPool()
	before := requestsOf(t, removed) + requestsOf(t, drained)
	etcd.Wipe()
	etcd.Restart()
	r.awaitStatus(func(s status) error { // a leased instance at its new revision shows that the new store is known
		in, _ := s.entry(r.prefill[0].Address)
		if mod := keys(t, etcd.Client(t))[keyOf(t, r.prefill[0])].Mod; mod == 0 || in.Revision != mod {
			return fmt.Errorf("%+v, etcd has %d", in, mod)
		}
		return nil
	})
	// The agents of the removed and the drained instance have registered again by now, or will soon; this
	// changes nothing.
	for range 3 {
		wait(t, ttl/2)
		r.awaitStatus(enforced)
	}
	r.awaitStatus(func(s status) error { // and operators can see it
		for _, a := range []string{static.Address, drained.Address} {
			if in, ok := s.entry(a); !ok || in.Reason == "" {
				return fmt.Errorf("%s is not flagged: %+v", a, in)
			}
		}
		if !slices.ContainsFunc(s.Notices, func(text string) bool { return strings.Contains(text, "(3): pdctl restore --all") }) {
			return fmt.Errorf("notices: %q", s.Notices)
		}
		proxies, err := store.New(etcd.Client(t), lay, "test").Reader.Proxies(t.Context())
		if err != nil || len(proxies) != 1 || len(proxies[0].Kept) != 3 {
			return fmt.Errorf("etcd has %+v, %v", proxies, err)
		}
		return nil
	})
	l.Served(20)
	p.finish(l, 1)
	after := requestsOf(t, removed) + requestsOf(t, drained)
	assert.Equal(t, before, after, "%d requests went to instances that were removed or drained", after-before)
}

// bare starts an engine without an agent.
func (r *rig) bare(role instance.Role, name string) *fleet.Node {
	r.t.Helper()
	n, err := r.f.StartNode(r.t.Context(), fleet.NodeSpec{
		Name: name, Role: role, Connector: "nixl", Model: harness.Model, ITL: time.Millisecond, EngineArgs: []string{"--faults"},
	})
	require.NoError(r.t, err)
	return n
}

// requestsOf returns the number of completions that have reached an engine.
func requestsOf(t testing.TB, n *fleet.Node) int64 {
	t.Helper()
	var s struct {
		Counters struct {
			Requests int64 `json:"requests"`
		} `json:"counters"`
	}
	engineState(t, n, &s)
	return s.Counters.Requests
}

// A proxy starts while etcd is down: its snapshot file names the instances, their probes decide which
// are used, and an instance that an operator removed is not used.
func TestFault14_StartWithoutEtcd(t *testing.T) {
	row(t, 14)
	etcd := etcdtest.Start(t)
	dir := stateDir(t)
	args := []string{"--audit-interval", "2s", "--state-dir", dir}
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, decode: 3, proxyArgs: args})
	removed, dead := r.decode[2], r.prefill[1]
	mustRun(t, "pdctl", "remove", "--yes", "decode", removed.Address, "--reason", "row 14", "--etcd-endpoints", etcd.Endpoint())
	require.NoError(t, r.proxies[0].WaitFor(t.Context(), 2, 2))
	require.NoError(t, r.proxies[0].Stop(t.Context()))
	etcd.Kill()
	require.NoError(t, dead.Kill()) // still in the snapshot file
	before := requestsOf(t, removed)
	start := time.Now()
	process, address := r.proxyNotReady(args...)
	r.awaitAnswer(address)
	measured(t, 14, "start to the first answer", time.Since(start), 2*time.Second)
	l := harness.StartLoad(t, clients, pause, "http://"+address)
	l.Served(60)
	etcd.Restart()
	r.proxies = []*fleet.Proxy{{Process: process, Address: address}}
	r.awaitStatus(etcdIs(string(watch.Live)))
	l.Served(20)
	l.Finish()
	assert.EqualValues(t, 0, requestsOf(t, removed)-before, "requests went to the instance that was removed")
}

// A proxy is suspended, like a laptop or a virtual machine, until its presence has expired. An
// instance that was drained meanwhile gets no request after it resumes.
func TestFault31_ProxySuspended(t *testing.T) {
	longform.Test(t)
	row(t, 31)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxyArgs: []string{"--audit-interval", "2s"}})
	cli, p, drained := etcd.Client(t), r.proxies[0], r.decode[1]
	l := harness.StartLoad(t, clients, pause, r.url())
	l.Served(20)
	l.Finish()
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	testkit.Eventually(t, soon, func() error { // its presence expires
		list, err := store.New(cli, members.Layout(t), "test").Reader.Proxies(t.Context())
		if err != nil || len(list) > 0 {
			return fmt.Errorf("%v, %w", list, err)
		}
		return nil
	})
	members.Put(t, cli, members.Layout(t).Override(instance.Key{Role: instance.Decode, Address: drained.Address}), `{"v":1,"state":"drain"}`)
	before := requestsOf(t, drained)
	// These connect to the suspended proxy and are the first requests that it reads.
	l = harness.StartLoad(t, clients, pause, r.url())
	wait(t, 200*time.Millisecond)
	require.NoError(t, p.Signal(syscall.SIGCONT))
	l.Served(60)
	l.Finish()
	counted(t, 31, "picks of an instance that was drained meanwhile", requestsOf(t, drained)-before, 0)
	assert.EqualValues(t, 0, requestsOf(t, drained)-before, "requests went to the drained instance")
}
