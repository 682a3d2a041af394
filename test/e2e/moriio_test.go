package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Engines that register by pings: they are discovered, serve through prefill and decode, are removed
// when they stop pinging or the bridge is killed, and return. Tested with the bridge in the proxy and in
// an agent, and with both generations of the messages.
func TestMoRIIOFleet(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, mode string
		old, agent bool // old: the older messages; agent: the bridge runs in an agent instead of the proxy
	}{
		{"agent", "moriio_write", false, true}, {"proxy", "moriio_read", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t).Endpoint()
			f := newFleet(t)
			pingTo := "tcp://" + testkit.FreePort(t)
			spec := fleet.ProxySpec{Name: "proxy", EtcdEndpoints: []string{etcd}, AdminKey: adminKey}
			if !tc.agent {
				spec.Args = []string{"--zmq-register", pingTo}
			}
			p, err := f.StartProxy(t.Context(), spec)
			require.NoError(t, err)
			socket := filepath.Join(f.Dir(), "b.sock")
			startBridge := func() *fleet.Process {
				b, err := f.Start(t.Context(), fleet.Spec{Name: "bridge", Program: "agent",
					Args: []string{"--zmq-register", pingTo, "--etcd-endpoints", etcd, "--ttl", "5s", "--socket", socket}})
				require.NoError(t, err)
				return b
			}
			var bridge *fleet.Process
			if tc.agent {
				bridge = startBridge()
			}
			nodes := map[instance.Role]*fleet.Node{}
			for _, role := range instance.Roles() {
				s := fleet.NodeSpec{Name: string(role), Role: role, Connector: tc.mode, Model: model,
					EngineArgs: []string{"--strict", "--faults", "--ping-to", pingTo, "--ping-interval", "200ms"}}
				if tc.old {
					s.EngineArgs = append(s.EngineArgs, "--ping-old")
				}
				nodes[role], err = f.StartNode(t.Context(), s)
				require.NoError(t, err)
			}
			c := newClient(t, adminKey)
			serve := func(name string) {
				t.Helper()
				for i := range 5 {
					r := complete(t.Context(), c, p.URL(), fmt.Sprint(name, i), 5)
					require.NoError(t, r.Err, "%s %d: %v", name, i, r.Err)
				}
				s := stateOf(t, nodes[instance.Decode])
				assert.True(t, s.Counters.LocalPrefills == 0 && s.Counters.WrongKV == 0 && s.Counters.TransfersLoaded != 0,
					"%s: decode computed prompts itself: %+v, %q", name, s.Counters, s.Refusals)
			}
			require.NoError(t, p.WaitFor(t.Context(), 1, 1))
			if tc.agent {
				raw, err := agentctl.NewClient(socket).Metrics(t.Context())
				assert.True(t, err == nil && strings.Contains(string(raw), "\npd_zmq_register_instances 2\n"),
					"%v, the bridge counts %s", err, raw)
			} else if n := metric(t, p.URL(), "pd_zmq_register_instances"); n != 2 {
				t.Errorf("%v engines are counted", n)
			}
			serve("first")

			registered := func(want int) {
				t.Helper()
				cli := etcdtest.Client(t, etcd)
				testkit.Eventually(t, time.Minute, func() error {
					n := 0
					for role, node := range nodes {
						resp, err := cli.Get(t.Context(), "/pd/"+string(role)+"/"+node.Address)
						if err != nil {
							return err
						}
						n += len(resp.Kvs)
					}
					if n != want {
						return fmt.Errorf("%d instances are in etcd, want %d", n, want)
					}
					return nil
				})
			}
			if tc.agent {
				require.NoError(t, bridge.Kill())
				registered(0)
				serve("orphans") // they answer probes, so the proxy keeps using them
				startBridge()
				registered(2)
				serve("again")
			}
			require.NoError(t, nodes[instance.Prefill].Engine.Kill())
			registered(1)
			again := nodes[instance.Prefill].Spec
			again.Name = "prefill-again"
			nodes[instance.Prefill], err = f.StartNode(t.Context(), again)
			require.NoError(t, err)
			registered(2)
			require.NoError(t, p.WaitFor(t.Context(), 1, 1))
			serve("last")
		})
	}
}
