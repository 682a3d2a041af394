package faults_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/test/harness"
)

// pdctl runs pdctl against the rig's etcd and returns its output and exit code.
func (r *rig) pdctl(args ...string) (string, int) {
	r.t.Helper()
	if slices.Contains([]string{"drain", "remove"}, args[0]) {
		args = append(args, "--yes") // the last instance of its role, too
	}
	return command(r.t, "pdctl", append(args, "--etcd-endpoints", strings.Join(r.etcd, ","))...)
}

// mustPdctl runs pdctl and fails the test unless it succeeds.
func (r *rig) mustPdctl(args ...string) string {
	r.t.Helper()
	out, code := r.pdctl(args...)
	require.Equal(r.t, 0, code, "pdctl %s: exit %d\n%s", strings.Join(args, " "), code, out)
	return out
}

// restart stops a node as a supervisor does, the agent first, and starts it again at the same
// address.
func (r *rig) restart(n *fleet.Node) *fleet.Node {
	r.t.Helper()
	for _, p := range []*fleet.Process{n.Agent, n.Engine} {
		if err := p.Stop(r.t.Context()); err != nil {
			r.t.Fatalf("end of %s: %v", p.Name(), err)
		}
	}
	again, err := r.f.StartNode(r.t.Context(), n.Spec)
	require.NoError(r.t, err)
	return again
}

// awaitReady waits until every proxy has a registered, verified entry with the given intent.
func (r *rig) awaitReady(address string, intent instance.Intent) {
	r.t.Helper()
	r.awaitEntry(address, func(in instance.Listing, ok bool) bool {
		return ok && in.State == instance.Ready && in.View == "" && in.Intent == intent
	})
}

// pendingWork holds the counters of an engine's pending work.
type pendingWork struct {
	Counters struct {
		Running  int64 `json:"running"`
		Waiting  int64 `json:"waiting"`
		Unpulled int64 `json:"transfers_waiting"`
	} `json:"counters"`
}

// assertIdle fails the test if an engine has pending work.
func assertIdle(t testing.TB, n *fleet.Node) {
	t.Helper()
	var w pendingWork
	engineState(t, n, &w)
	assert.EqualValues(t, 0, w.Counters.Running+w.Counters.Waiting+w.Counters.Unpulled,
		"%s has pending work: %+v", n.Address, w.Counters)
}

// streams are long streams through one proxy. Each must end normally.
type streams struct {
	t  *testing.T
	wg sync.WaitGroup
}

// longTokens is the number of tokens of each stream, enough to outlast the steps of a test.
const longTokens = 4000

// open starts n streams and checks that the proxy has some in flight on one of the instances.
func (r *rig) open(p *fleet.Proxy, n, tokens int, on ...*fleet.Node) *streams {
	r.t.Helper()
	s := &streams{t: r.t}
	client := harness.NewClient(r.t, adminKey)
	var begun sync.WaitGroup // done after the first text, when every leg has reached its engine
	begun.Add(n)
	for i := range n {
		s.wg.Go(func() {
			ctx := context.WithoutCancel(r.t.Context())
			var first sync.Once
			defer first.Do(begun.Done)
			res := harness.CompleteSeen(ctx, client, p.URL(), fmt.Sprintf("long stream %d of %s", i, p.Name()), tokens,
				func([]byte) { first.Do(begun.Done) })
			if res.Err != nil {
				s.t.Errorf("a long stream of %s: %v", p.Name(), res.Err)
			}
		})
	}
	begun.Wait()
	got, err := fetchStatus(r.t.Context(), p)
	require.NoError(r.t, err)
	var of []string
	for _, node := range on {
		if in, ok := got.entry(node.Address); ok && in.InFlight != nil && *in.InFlight > 0 {
			return s
		}
		of = append(of, node.Address)
	}
	r.t.Errorf("%s has nothing in flight on %v: %+v", p.Name(), of, got)
	return s
}

// ended waits until all streams have ended.
func (s *streams) ended() { s.wg.Wait() }

// pdctl drain --wait returns when the engine has no work left, and no stream is cut.
func TestDrainUntilFree(t *testing.T) {
	t.Parallel()
	r := build(t, plan{proxies: 3})
	l := r.load()
	x, p := r.decode[1], r.prefill[1]
	var open []*streams
	for _, proxy := range r.proxies {
		open = append(open, r.open(proxy, 4, longTokens, x))
	}
	out := r.mustPdctl("drain", "decode", x.Address, "--wait", "--timeout", "1m")
	assertIdle(t, x)
	assert.True(t, contains(out, "idle"), "pdctl prints %q", out)
	r.mustPdctl("drain", "prefill", p.Address, "--wait", "--timeout", "1m")
	assertIdle(t, p)
	drained := []int64{requestsOf(t, x), requestsOf(t, p)}
	l.Served(60)
	if got := []int64{requestsOf(t, x), requestsOf(t, p)}; got[0] != drained[0] || got[1] != drained[1] {
		t.Errorf("requests of the drained instances grew from %d to %d", drained, got)
	}
	// Undrain both. Every proxy has applied it when wait returns.
	revision := strings.TrimSpace(r.mustPdctl("undrain", "decode", x.Address, "-o", "json"))
	r.mustPdctl("undrain", "prefill", p.Address)
	if _, after, ok := strings.Cut(revision, `"revision": `); ok {
		n := strings.FieldsFunc(after, func(c rune) bool { return c < '0' || c > '9' })[0]
		r.mustPdctl("wait", "--revision", n, "--timeout", "1m")
	} else {
		t.Errorf("no revision in %s", revision)
	}
	r.awaitAll()
	for _, s := range open {
		s.ended()
	}
	l.FinishUncut()
}

// A proxy is suspended while an instance is drained. pdctl names it, and after it resumes it sends
// no request to the instance. Its streams in flight end normally.
func TestDrainWithASuspendedProxy(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	r := build(t, plan{proxies: 3})
	x, suspended := r.decode[1], r.proxies[2]
	others := harness.StartLoad(t, clients, pause, r.proxies[0].URL(), r.proxies[1].URL())
	others.Served(20)
	open := r.open(suspended, 4, longTokens, x)
	require.NoError(t, suspended.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = suspended.Signal(syscall.SIGCONT) })
	out, code := r.pdctl("drain", "decode", x.Address, "--wait", "--timeout", "50s")
	assert.True(t, code == 3 && contains(out, suspended.Address) && contains(out, "vanished"), "exit %d: %s", code, out)
	for _, p := range r.proxies[:2] {
		if _, last, _ := strings.Cut(out, "pdctl: "); contains(last, p.Address) {
			t.Errorf("%s is named as well: %s", p.Address, out)
		}
	}
	before := requestsOf(t, x)
	// These connect to the suspended proxy and are the first requests that it reads.
	l := harness.StartLoad(t, clients, pause, suspended.URL())
	wait(t, 200*time.Millisecond)
	require.NoError(t, suspended.Signal(syscall.SIGCONT))
	l.Served(60)
	open.ended()
	for _, l := range []*harness.Load{l, others} {
		l.FinishUncut()
	}
	assert.EqualValues(t, 0, requestsOf(t, x)-before, "requests went to the drained instance")
	// It has resumed and publishes its presence again.
	r.mustPdctl("drain", "decode", x.Address, "--wait", "--timeout", "1m")
	assertIdle(t, x)
}

// pdctl drain --wait exits with code 4 if a proxy has requests in flight after the timeout.
func TestDrainTimesOut(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	r := build(t, plan{prefill: 1, decode: 1})
	open := r.open(r.proxies[0], 2, 3*longTokens, r.decode[0])
	out, code := r.pdctl("drain", "decode", r.decode[0].Address, "--wait", "--timeout", "2s")
	if code != 4 || !contains(out, r.proxies[0].Address) || !contains(out, "in flight: ") && !contains(out, "not applied") {
		t.Errorf("exit %d: %s", code, out)
	}
	open.ended()
	r.mustPdctl("drain", "decode", r.decode[0].Address, "--wait", "--timeout", "1m")
}

// rounds returns the number of rounds of TestDrainRounds: PD_TEST_DRAIN_ROUNDS, or a few.
func rounds(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("PD_TEST_DRAIN_ROUNDS"))
	if err != nil {
		return 8
	}
	return n
}

// Nodes are drained, restarted and undrained one after the other under load, as the operator's guide
// describes. No request fails.
func TestDrainRounds(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	r := build(t, plan{proxies: 2, decode: 4})
	l := r.load()
	n := rounds(t)
	for i := range n {
		x := r.decode[i%len(r.decode)]
		r.mustPdctl("drain", "decode", x.Address, "--wait", "--timeout", "50s", "--reason", fmt.Sprintf("round %d", i+1))
		assertIdle(t, x)
		x = r.restart(x)
		r.decode[i%len(r.decode)] = x
		r.awaitReady(x.Address, instance.Drain)
		r.mustPdctl("undrain", "decode", x.Address)
		r.awaitReady(x.Address, "")
		l.Served(8)
		if failed := l.Failures(); len(failed) > 0 || l.Broken() > 0 {
			t.Fatalf("round %d: %d failed, %d cut: %s", i+1, len(failed), l.Broken(), strings.Join(failed, "\n"))
		}
	}
	l.FinishUncut()
	t.Logf("%d rounds of drain, restart, undrain: %d right answers", n, l.Answered())
}

// Idle proxies write nothing to etcd: updates of their presences do not trigger each other. Under
// load they write their load digests and nothing else.
func TestIdleProxiesWriteNothing(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	etcd := etcdtest.Start(t)
	cli := members.Dial(t, etcd.Endpoint())
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxies: 5, ttl: longer})
	// Each proxy publishes once that it has ejected this one, and probes it all the time.
	if _, err := cli.Put(t.Context(), members.Layout(t).Instance(instance.Key{Role: instance.Decode, Address: testkit.FreePort(t)}), `{"models":["m"]}`); err != nil {
		t.Fatal(err)
	}
	revision := func() int64 {
		t.Helper()
		resp, err := cli.Get(t.Context(), members.Layout(t).Schema())
		require.NoError(t, err)
		return resp.Header.Revision
	}
	// The last write after the start happens within a second.
	testkit.Eventually(t, soon, func() error {
		before := revision()
		wait(t, 3*time.Second)
		if after := revision(); after != before {
			return fmt.Errorf("%d revisions in three seconds", after-before)
		}
		return nil
	})
	before := revision()
	wait(t, outage(schema.DefaultTTL+5*time.Second, 5*time.Minute)) // longer than their leases
	if after := revision(); after != before {
		t.Errorf("%d revisions while nothing happened", after-before)
	}
	h := record(t, cli, "/pd/")
	l := r.load()
	l.Served(200)
	testkit.EventuallyTrue(t, soon, func() bool { return revision() != before }, "a load digest is written")
	l.Finish()
	t.Logf("%d revisions while 5 proxies answered %d requests", revision()-before, l.Answered())
	for _, e := range h.all() {
		assert.True(t, strings.HasPrefix(e.Key, members.Layout(t).Load("")), "%s was written", e.Key)
	}
}

// A prefill instance is not drained while it holds KV blocks that no decode instance has fetched. The
// client disconnects before the fetch.
func TestDrain_PrefillWaitsForTransfer(t *testing.T) {
	t.Parallel()
	r := build(t, plan{prefill: 1, decode: 1, ttl: longer, proxyArgs: []string{"--kv-lease-budget", "10s"}})
	p, d := r.prefill[0], r.decode[0]
	require.NoError(t, d.Engine.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = d.Engine.Signal(syscall.SIGCONT) })
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		harness.Complete(ctx, harness.NewClient(t, adminKey), r.url(), "client that leaves early", 8)
	}()
	// It has a decode instance: the proxy has read the answer that names the blocks.
	r.awaitEntry(d.Address, func(in instance.Listing, ok bool) bool { return ok && in.InFlight != nil && *in.InFlight > 0 })
	leave()
	<-done
	out := r.mustPdctl("drain", "prefill", p.Address, "--wait", "--timeout", "50s")
	assert.True(t, contains(out, "in flight: 1 on prefill/"+p.Address), "drain did not wait for the blocks: %s", out)
}
