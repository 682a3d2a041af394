package browser_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

const adminKey = "operators-key"

// rig is an etcd, its proxies, and engines with their agents.
type rig struct {
	*testing.T
	etcd    *etcdtest.Server
	fleet   *fleet.Fleet
	proxies []*fleet.Proxy
	nodes   int
	model   string
}

// newRig starts an etcd and proxies. Its test runs in parallel with others.
func newRig(t *testing.T, proxies int, args ...string) *rig {
	t.Helper()
	t.Parallel()
	chromium(t) // skips before any process is started
	r := &rig{T: t, etcd: etcdtest.Start(t), fleet: harness.NewFleet(t, binDir), model: harness.Model}
	for i := range proxies {
		p, err := r.fleet.StartProxy(t.Context(), fleet.ProxySpec{
			Name: fmt.Sprintf("proxy-%d", i+1), EtcdEndpoints: []string{r.etcd.Endpoint()}, AdminKey: adminKey, Args: append([]string{"--connector", "nixl"}, args...),
		})
		require.NoError(t, err)
		r.proxies = append(r.proxies, p)
	}
	return r
}

func (r *rig) url() string { return r.proxies[0].URL() }

// node starts an engine, with or without an agent that registers it.
func (r *rig) node(role instance.Role, registered bool, args ...string) *fleet.Node {
	r.Helper()
	r.nodes++
	spec := fleet.NodeSpec{
		Name: fmt.Sprintf("%s-%d", role, r.nodes), Role: role, Model: r.model, Connector: "nixl", TTFT: 30 * time.Millisecond, ITL: 6 * time.Millisecond, EngineArgs: args,
	}
	if registered {
		spec.Etcd = []string{r.etcd.Endpoint()}
	}
	n, err := r.fleet.StartNode(r.Context(), spec)
	require.NoError(r, err)
	return n
}

// serves waits until the first proxy can use the given numbers of instances.
func (r *rig) serves(prefill, decode int) {
	r.Helper()
	require.NoError(r, r.proxies[0].WaitFor(r.Context(), prefill, decode))
}
