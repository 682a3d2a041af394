package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/test/harness"
)

const (
	adminKey = "faults-admin-key"
	// ttl of the agents' leases, short so that outages can be short.
	ttl = 3 * time.Second
	// longer is the TTL of agents whose lease must not expire in a test, even if they get no CPU for
	// seconds.
	longer = 10 * time.Second
	// audit is the interval between two audits of a proxy.
	audit = 2 * time.Second
	// clients and pause of the load, which is light: the fault is under test, not the machine.
	clients = 4
	pause   = 40 * time.Millisecond
)

// lastingTTL returns longer, or ttl for the report, which uses a short TTL.
func lastingTTL() time.Duration {
	if os.Getenv("PD_TEST_FAULT_REPORT") != "" {
		return ttl
	}
	return longer
}

// rig is a whole fleet with one etcd cluster.
type rig struct {
	t       *testing.T
	f       *fleet.Fleet
	etcd    []string // endpoints of the proxies
	agents  []string // endpoints of the agents
	proxies []*fleet.Proxy
	prefill []*fleet.Node
	decode  []*fleet.Node

	engineArgs []string
}

// plan is the composition of a rig; zero counts mean one proxy and two instances of each role.
type plan struct {
	etcd            []string // for proxies, and for agents unless agents is set; nil: of a new etcd
	agents          []string
	proxies         int
	prefill, decode int
	proxyArgs       []string
	agentArgs       []string
	engineArgs      []string
	ttl             time.Duration
}

func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	return harness.NewFleet(t, bin)
}

func build(t *testing.T, p plan) *rig {
	t.Helper()
	if p.etcd == nil {
		p.etcd = []string{etcdtest.Start(t).Endpoint()}
	}
	if p.agents == nil {
		p.agents = p.etcd
	}
	if p.prefill == 0 {
		p.prefill = 2
	}
	if p.decode == 0 {
		p.decode = 2
	}
	if p.ttl == 0 {
		p.ttl = ttl
	}
	r := &rig{t: t, f: newFleet(t), etcd: p.etcd, agents: p.agents, engineArgs: p.engineArgs}
	for i := range max(p.proxies, 1) {
		r.proxies = append(r.proxies, r.proxy(fmt.Sprintf("proxy-%d", i+1), p.proxyArgs...))
	}
	for i := range p.prefill {
		r.prefill = append(r.prefill, r.node(instance.Prefill, i+1, p.ttl, p.agentArgs...))
	}
	for i := range p.decode {
		r.decode = append(r.decode, r.node(instance.Decode, i+1, p.ttl, p.agentArgs...))
	}
	r.awaitAll()
	return r
}

// proxyArgs returns the arguments of every proxy of these tests.
func proxyArgs(more ...string) []string {
	return append([]string{"--connector", "nixl", "--waiting-retry-interval", "200ms", "--access-log=off"}, more...)
}

func (r *rig) proxy(name string, args ...string) *fleet.Proxy {
	r.t.Helper()
	p, err := r.f.StartProxy(r.t.Context(), fleet.ProxySpec{
		Name: name, EtcdEndpoints: r.etcd, AdminKey: adminKey, Args: proxyArgs(args...),
	})
	require.NoError(r.t, err)
	return p
}

func (r *rig) node(role instance.Role, n int, ttl time.Duration, args ...string) *fleet.Node {
	r.t.Helper()
	node, err := r.f.StartNode(r.t.Context(), fleet.NodeSpec{
		Name: fmt.Sprintf("%s-%d", role, n), Role: role, Connector: "nixl", Model: harness.Model, ITL: time.Millisecond,
		Etcd: r.agents, TTL: ttl, EngineArgs: append([]string{"--faults"}, r.engineArgs...),
		AgentArgs: append([]string{"--allow-short-ttl", "--kv-lease", "0s", "--probe-interval", "200ms"}, args...),
	})
	require.NoError(r.t, err)
	return node
}

func (r *rig) nodes() []*fleet.Node { return slices.Concat(r.prefill, r.decode) }

// url returns the URL of the first proxy.
func (r *rig) url() string { return r.proxies[0].URL() }

func (r *rig) urls() []string {
	var out []string
	for _, p := range r.proxies {
		out = append(out, p.URL())
	}
	return out
}

func (r *rig) load() *harness.Load {
	r.t.Helper()
	l := harness.StartLoad(r.t, clients, pause, r.urls()...)
	l.Served(20)
	return l
}

// awaitAll waits until every proxy uses every instance.
func (r *rig) awaitAll() {
	r.t.Helper()
	for _, p := range r.proxies {
		require.NoError(r.t, p.WaitFor(r.t.Context(), len(r.prefill), len(r.decode)))
	}
}

// status is the status of one proxy, with fields that package fleet does not read.
type status struct {
	fleet.Status
	Etcd struct {
		State     string `json:"state"`
		LastError string `json:"last_error"`
		Ended     string `json:"ended"`
		Ends      int64  `json:"ends"`
		Orphans   int    `json:"orphans"`

		Members  []string `json:"members"`
		Departed []string `json:"departed"`
	} `json:"etcd"`
	Notices []string `json:"notices"`
}

func fetchStatus(ctx context.Context, p *fleet.Proxy) (s status, err error) {
	err = fetch(ctx, p.URL()+"/status", &s)
	return s, err
}

// fetch reads a page of a proxy in JSON, whatever its status.
func fetch(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, text, err := harness.Send(ctx, http.MethodGet, url, "")
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// awaitStatus waits until every proxy's status meets a condition.
func (r *rig) awaitStatus(want func(status) error) {
	r.t.Helper()
	for _, p := range r.proxies {
		testkit.Eventually(r.t, soon, func() error {
			s, err := fetchStatus(r.t.Context(), p)
			if err == nil {
				err = want(s)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name(), err)
			}
			return nil
		})
	}
}

// etcdIs is a condition for awaitStatus.
func etcdIs(state string) func(status) error {
	return func(s status) error {
		if s.Etcd.State != state {
			return fmt.Errorf("etcd is %q (%s), want %q", s.Etcd.State, s.Etcd.LastError, state)
		}
		return nil
	}
}

// awaitRecovered waits until every proxy has a working etcd, uses every instance and has no orphans.
func (r *rig) awaitRecovered() {
	r.t.Helper()
	r.awaitStatus(func(s status) error {
		if s.Etcd.State != "live" || len(s.PrefillNodes) != len(r.prefill) || len(s.DecodeNodes) != len(r.decode) || s.Etcd.Orphans != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// awaitEntry waits until an instance in every proxy's status meets a condition; ok reports whether the status
// has the instance.
func (r *rig) awaitEntry(address string, want func(in instance.Listing, ok bool) bool) {
	r.t.Helper()
	r.awaitStatus(func(s status) error {
		if in, ok := s.entry(address); !want(in, ok) {
			return fmt.Errorf("%s is %+v", address, in)
		}
		return nil
	})
}

// entry returns an instance of a status.
func (s status) entry(address string) (instance.Listing, bool) {
	for _, in := range s.Instances {
		if in.Address == address {
			return in, true
		}
	}
	return instance.Listing{}, false
}

// pool records the instances that the proxies use and list.
type pool struct {
	t    *testing.T
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	polls  int
	least  map[instance.Role]int
	states map[string]bool
	listed map[string]int // address → polls with the instance
}

// startPool starts polling every proxy's status.
func (r *rig) startPool() *pool {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	p := &pool{
		t: r.t, stop: cancel, least: map[instance.Role]int{instance.Prefill: 1 << 30, instance.Decode: 1 << 30},
		states: map[string]bool{}, listed: map[string]int{},
	}
	for _, proxy := range r.proxies {
		p.wg.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				s, err := fetchStatus(ctx, proxy)
				if err != nil {
					continue
				}
				p.mu.Lock()
				p.polls++
				p.least[instance.Prefill] = min(p.least[instance.Prefill], len(s.PrefillNodes))
				p.least[instance.Decode] = min(p.least[instance.Decode], len(s.DecodeNodes))
				for _, in := range s.Instances {
					p.states[in.Address+" "+string(in.View)] = true
					p.listed[in.Address]++
				}
				p.mu.Unlock()
			}
		})
	}
	r.t.Cleanup(p.end)
	return p
}

func (p *pool) end() { p.stop(); p.wg.Wait() }

// neverBelow fails the test if a role had fewer than n instances in any poll.
func (p *pool) neverBelow(n int) {
	p.t.Helper()
	p.end()
	for role, least := range p.least {
		assert.GreaterOrEqual(p.t, least, n, "%d %s instances were used at one time, want at least %d", least, role, n)
	}
}

// neverAbsent fails the test if an instance was not in a polled status.
func (p *pool) neverAbsent(n *fleet.Node) {
	p.t.Helper()
	p.end()
	assert.Equal(p.t, p.polls, p.listed[n.Address], "polls, and those with %s", n.Address)
}

// finish ends the load, and checks its requests and that no role had fewer than n instances in any poll.
func (p *pool) finish(l *harness.Load, n int) {
	p.t.Helper()
	l.Finish()
	p.neverBelow(n)
}

// sawView reports whether an instance had the given view in any poll.
func (p *pool) sawView(address string, v instance.View) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.states[address+" "+string(v)]
}

// keyOf returns the key of a node's record.
func keyOf(t testing.TB, n *fleet.Node) string {
	t.Helper()
	return members.Layout(t).Instance(instance.Key{Role: n.Spec.Role, Address: n.Address})
}

// keyFacts are the properties of a key that an outage must not change.
type keyFacts struct{ Lease, Create, Mod, Version int64 }

// keys reads the lease and the revisions of every instance's key.
func keys(t testing.TB, cli *clientv3.Client) map[string]keyFacts {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	out := map[string]keyFacts{}
	for _, role := range instance.Roles() {
		resp, err := cli.Get(ctx, members.Layout(t).Root()+string(role)+"/", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, kv := range resp.Kvs {
			out[string(kv.Key)] = keyFacts{kv.Lease, kv.CreateRevision, kv.ModRevision, kv.Version}
		}
	}
	return out
}

// control returns a client for the agent of a node.
func control(t testing.TB, f *fleet.Fleet, n *fleet.Node) *agentctl.Client {
	t.Helper()
	dir := f.Dir()
	var path string
	testkit.Eventually(t, soon, func() (err error) {
		path, err = agentctl.Find(instance.Key{Role: n.Spec.Role, Address: n.Address}, func(name string) string {
			if name == "XDG_RUNTIME_DIR" {
				return dir
			}
			return ""
		})
		return err
	})
	return agentctl.NewClient(path)
}

// awaitAgent waits until a node's agent reports a status that meets the condition.
func (r *rig) awaitAgent(n *fleet.Node, want func(agentctl.Report) error) {
	r.t.Helper()
	c := control(r.t, r.f, n)
	testkit.Eventually(r.t, soon, func() error {
		rep, err := c.Status(r.t.Context())
		if err != nil {
			return err
		}
		return want(rep)
	})
}

func registrationIs(phase lease.Phase) func(agentctl.Report) error {
	return func(rep agentctl.Report) error {
		if rep.Registration.Phase != string(phase) {
			return fmt.Errorf("registration of %s is %s (%s), want %s", rep.Address, rep.Registration.Phase, rep.Registration.Reason, phase)
		}
		return nil
	}
}

// engineState reads the counters of an engine.
func engineState(t testing.TB, n *fleet.Node, into any) {
	t.Helper()
	require.NoError(t, n.Get(t.Context(), "/fake/state", into))
}

var errNotYet = errors.New("not yet")

// stateDir creates a state directory for a proxy.
func stateDir(t testing.TB) string { t.Helper(); return filepath.Join(t.TempDir(), "state") }
