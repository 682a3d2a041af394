package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

const adminKey = "e2e-admin-key"

// soon bounds the time that a test waits for a condition; no test asserts on it.
const soon = 60 * time.Second

// proxiesOn starts n proxies on one etcd.
func proxiesOn(t *testing.T, f *fleet.Fleet, etcd string, n int) []*fleet.Proxy {
	t.Helper()
	var out []*fleet.Proxy
	for i := range n {
		out = append(out, startProxy(t, f, fmt.Sprintf("proxy-%d", i+1), etcd, "--connector", "nixl", "--waiting-retry-interval", "200ms"))
	}
	return out
}

// proxies starts a fleet of n proxies and an etcd.
func proxies(t *testing.T, n int) (f *fleet.Fleet, etcd string, list []*fleet.Proxy) {
	t.Helper()
	f, etcd = newFleet(t), etcdtest.Start(t).Endpoint()
	return f, etcd, proxiesOn(t, f, etcd, n)
}

// startProxy starts a proxy on an etcd.
func startProxy(t *testing.T, f *fleet.Fleet, name, etcd string, args ...string) *fleet.Proxy {
	t.Helper()
	p, err := f.StartProxy(t.Context(), fleet.ProxySpec{Name: name, EtcdEndpoints: []string{etcd}, AdminKey: adminKey, Args: args})
	require.NoError(t, err)
	return p
}

// node starts an engine and, if etcd endpoints are given, an agent for it.
func node(t *testing.T, f *fleet.Fleet, name string, role instance.Role, port int, etcd ...string) *fleet.Node {
	t.Helper()
	return startNode(t, f, fleet.NodeSpec{
		Name: name, Role: role, Port: port, Connector: "nixl", Model: model, Etcd: etcd, TTL: 5 * time.Second,
		ITL: time.Millisecond,
	})
}

func startNode(t *testing.T, f *fleet.Fleet, spec fleet.NodeSpec) *fleet.Node {
	t.Helper()
	n, err := f.StartNode(t.Context(), spec)
	require.NoError(t, err)
	return n
}

// pair starts a node of each role by a spec without name and role.
func pair(t *testing.T, f *fleet.Fleet, spec fleet.NodeSpec) map[instance.Role]*fleet.Node {
	t.Helper()
	nodes := map[instance.Role]*fleet.Node{}
	for _, role := range instance.Roles() {
		spec.Name, spec.Role = string(role), role
		nodes[role] = startNode(t, f, spec)
	}
	return nodes
}

// stateOf returns the state of a simulated engine.
func stateOf(t *testing.T, n *fleet.Node) (s fakevllm.State) {
	t.Helper()
	require.NoError(t, n.Get(t.Context(), "/fake/state", &s))
	return s
}

func st(t *testing.T, etcd string) *store.Store {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	return store.New(etcdtest.Client(t, etcd), l, "test")
}

// seen is the part of an instance on which all views of the membership must agree.
type seen struct {
	State    instance.State
	View     instance.View
	Static   bool
	Revision int64
}

func viewsOf(list []instance.Listing) map[string]seen {
	out := map[string]seen{}
	for _, l := range list {
		out[string(l.Role)+"/"+l.Address] = seen{l.State, l.View, l.Static, l.Revision}
	}
	return out
}

func pdctlList(t *testing.T, etcd string) map[string]seen {
	t.Helper()
	var out struct{ Instances []instance.Listing }
	require.NoError(t, json.Unmarshal([]byte(runProgram(t, "pdctl", "list", "-o", "json", "--etcd-endpoints", etcd)), &out))
	return viewsOf(out.Instances)
}

// agree waits until every proxy shows the same n members as pdctl.
func agree(t *testing.T, etcd string, list []*fleet.Proxy, n int) map[string]seen {
	t.Helper()
	var want map[string]seen
	testkit.Eventually(t, soon, func() error {
		want = pdctlList(t, etcd)
		if len(want) != n {
			return fmt.Errorf("pdctl lists %v, want %d", want, n)
		}
		for _, p := range list {
			s, err := p.Status(t.Context())
			if err != nil {
				return err
			}
			if got := viewsOf(s.Instances); !maps.Equal(got, want) {
				return fmt.Errorf("%s shows %v, pdctl %v", p.Name(), got, want)
			}
		}
		return nil
	})
	return want
}

// Three proxies share one etcd: an instance added through one serves through another, all show the
// same, and nothing changes when all are restarted.
func TestProxiesAgree(t *testing.T) {
	t.Parallel()
	f, etcd, list := proxies(t, 3)
	node(t, f, "p1", instance.Prefill, 0, etcd)
	p2 := node(t, f, "p2", instance.Prefill, 0)
	d1 := node(t, f, "d1", instance.Decode, 0)
	got, want := add(t, list[0].URL(), adminKey, "prefill", p2.Address), "Added "+p2.Address+" to prefill_instances."
	require.Equal(t, want, got, "add returns")
	add(t, list[0].URL(), adminKey, "decode", d1.Address)
	before := agree(t, etcd, list, 3)
	s := before["decode/"+d1.Address]
	require.True(t, s.Static && s.State == instance.Ready, "the added instance is %+v", s)
	// Both added instances serve through the second proxy.
	c := newClient(t, adminKey)
	served := map[string]bool{}
	for i := range 4 {
		r := complete(t.Context(), c, list[1].URL(), fmt.Sprint("hello ", i), 5)
		require.NoError(t, r.Err)
		served[r.Header.Get("X-Pd-Prefill")], served[r.Header.Get("X-Pd-Decode")] = true, true
	}
	require.True(t, served[p2.Address] && served[d1.Address], "served by %v", served)
	for i, p := range list {
		require.NoError(t, p.Stop(t.Context()))
		again, err := f.StartProxy(t.Context(), p.Spec)
		require.NoError(t, err)
		list[i] = again
	}
	if after := agree(t, etcd, list, 3); !maps.Equal(before, after) {
		t.Fatalf("membership changed by a restart of the proxies: %v, then %v", before, after)
	}
	require.NoError(t, complete(t.Context(), c, list[2].URL(), "again", 5).Err)
}

// The errors for a port in use and an unreachable etcd name the remedy.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	taken := ln.Addr().String()
	_, port, _ := net.SplitHostPort(taken)
	for _, tc := range []struct {
		name string
		args []string
		says []string
		code int
	}{
		{"port taken", []string{"proxy", "--port", port, "--etcd-endpoints", "127.0.0.1:1"}, []string{taken, "--port"}, 1},
		{"etcd port taken by something else", []string{"proxy", "--port", "0", "--etcd-listen", taken, "--etcd-data-dir", t.TempDir()}, []string{taken, "--etcd-listen"}, 1},
		{"wrong flag", []string{"proxy", "--prot", "1"}, []string{"--prot", "--help"}, 2},
		{"stray argument", []string{"proxy", "serve"}, []string{"serve", "--help"}, 2},
		{"bad value", []string{"proxy", "--port", "x"}, []string{"--port", "whole number"}, 2},
		{"pdctl without etcd", []string{"pdctl", "list", "--etcd-endpoints", "127.0.0.1:1"}, []string{"127.0.0.1:1"}, 1},
		{"pdctl with a bad role", []string{"pdctl", "add", "router", "127.0.0.1:80"}, []string{"prefill", "decode"}, 2},
		{"agent without a role", []string{"agent", "--address", "127.0.0.1:80"}, []string{"--role"}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out, code := runToFailure(t, tc.args[0], tc.args[1:]...)
			assert.Equal(t, tc.code, code, "exit code")
			require.True(t, testkit.Contains(t, out, tc.says...))
			assert.NotContains(t, out, "panic", "it crashed: %s", out)
		})
	}
}

// Short forms of the functions of package harness.

const model = harness.Model

func startLoad(t *testing.T, clients int, urls ...string) *harness.Load {
	t.Helper()
	return harness.StartLoad(t, clients, 50*time.Millisecond, urls...)
}

func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	return harness.NewFleet(t, binDir)
}

func newClient(t *testing.T, adminKey string) *loadgen.Client {
	t.Helper()
	return harness.NewClient(t, adminKey)
}

func complete(ctx context.Context, c *loadgen.Client, url, prompt string, tokens int) loadgen.Result {
	return harness.Complete(ctx, c, url, prompt, tokens)
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	return harness.Get(t, url)
}

func add(t *testing.T, url, key, role, address string) string {
	t.Helper()
	return harness.Add(t, url, key, role, address)
}

func metric(t *testing.T, url, name string, labels ...string) float64 {
	t.Helper()
	return harness.Metric(t, url, name, labels...)
}
