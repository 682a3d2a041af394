package e2e_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Engines with MooncakeConnector, an agent, etcd and a proxy: decode engines compute no prompt themselves,
// even after the prefill engine has restarted with another engine ID, and receive no request that would harm
// real engines.
func TestMooncakeFleet(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t).Endpoint()
	f := newFleet(t)
	p := startProxy(t, f, "proxy", etcd)
	nodes := pair(t, f, fleet.NodeSpec{Connector: "mooncake", Model: model, Etcd: []string{etcd}, EngineArgs: []string{"--strict", "--faults"}})
	state := func(role instance.Role) fakevllm.State { return stateOf(t, nodes[role]) }
	c := newClient(t, adminKey)
	serve := func(name string, n int) {
		before := state(instance.Decode).Counters
		for i := range n {
			r := complete(t.Context(), c, p.URL(), fmt.Sprint(name, i), 5)
			require.NoError(t, r.Err, "%s %d: %v", name, i, r.Err)
		}
		after := state(instance.Decode)
		if got := after.Counters.TransfersLoaded - before.TransfersLoaded; got != int64(n) || after.Counters.LocalPrefills != 0 || after.Counters.WrongKV != 0 {
			t.Errorf("%s: %d of %d prompts came from prefill: %+v, %q", name, got, n, after.Counters, after.Refusals)
		}
	}
	require.NoError(t, p.WaitFor(t.Context(), 1, 1))
	serve("first", 10)

	old := state(instance.Prefill).EngineID
	require.NoError(t, nodes[instance.Prefill].Engine.Kill())
	again := nodes[instance.Prefill].Spec
	again.Etcd = nil // its agent is still running
	again.Name = "prefill-again"
	nodes[instance.Prefill] = startNode(t, f, again)
	id := state(instance.Prefill).EngineID
	require.NotEqual(t, old, id, "the engine has the ID %s again after its restart", id)
	testkit.Eventually(t, soon, func() error {
		resp, err := etcdtest.Client(t, etcd).Get(t.Context(), "/pd/prefill/"+nodes[instance.Prefill].Address)
		if err != nil || len(resp.Kvs) != 1 {
			return fmt.Errorf("%v, %v", resp, err)
		}
		var rec instance.Record
		if err := json.Unmarshal(resp.Kvs[0].Value, &rec); err != nil {
			return err
		}
		if rec.State != instance.Ready || rec.EngineIDs["0"] != id {
			return fmt.Errorf("the engine is %s, the record %s", id, resp.Kvs[0].Value)
		}
		return nil
	})
	agree(t, etcd, []*fleet.Proxy{p}, 2)
	serve("second", 10)
	for _, role := range instance.Roles() {
		if s := state(role); len(s.Violations) > 0 || len(s.BadParams) > 0 || s.Counters.Crashes > 0 || s.Counters.TransfersWaiting > 0 {
			t.Errorf("%s: %q, %q, %+v", role, s.Violations, s.BadParams, s.Counters)
		}
	}
}

// Engines without agents: the proxy queries the prefill engine's bootstrap server itself. A prefill
// engine that restarts at the same address is never mistaken for the previous process, and transfers
// again under its new ID.
func TestMooncakeWithoutAgents(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t).Endpoint()
	f := newFleet(t)
	p := startProxy(t, f, "proxy", etcd)
	nodes := pair(t, f, fleet.NodeSpec{Connector: "mooncake", Model: model, EngineArgs: []string{"--strict", "--faults"}})
	for role, n := range nodes {
		rec := `{"connector":"MooncakeConnector"}`
		if role == instance.Prefill {
			rec = fmt.Sprintf(`{"connector":"MooncakeConnector","ports":{"bootstrap":[%d]}}`, n.Spec.KVPort)
		}
		if _, err := etcdtest.Client(t, etcd).Put(t.Context(), "/pd/"+string(role)+"/"+n.Address, rec); err != nil {
			t.Fatal(err)
		}
	}
	state := func(role instance.Role) fakevllm.State { return stateOf(t, nodes[role]) }
	require.NoError(t, p.WaitFor(t.Context(), 1, 1))
	c, n := newClient(t, adminKey), 0
	ask := func() error {
		n++
		return complete(t.Context(), c, p.URL(), fmt.Sprint("request ", n), 5).Err
	}
	for range 5 {
		require.NoError(t, ask())
	}
	if s := state(instance.Decode); s.Counters.TransfersLoaded != 5 || s.Counters.LocalPrefills != 0 {
		t.Errorf("%+v", s.Counters)
	}
	old := state(instance.Prefill).EngineID
	require.NoError(t, nodes[instance.Prefill].Engine.Kill())
	again := nodes[instance.Prefill].Spec
	again.Name = "prefill-again"
	nodes[instance.Prefill] = startNode(t, f, again)
	require.NotEqual(t, old, state(instance.Prefill).EngineID, "the engine has the ID %s again after its restart", old)
	testkit.Eventually(t, soon, func() error {
		require.NoError(t, ask()) // even before the new process is known
		if s := state(instance.Decode); s.Counters.TransfersLoaded <= 5 {
			return fmt.Errorf("%+v", s.Counters)
		}
		return nil
	})
	for _, role := range instance.Roles() {
		if s := state(role); len(s.Violations) > 0 || len(s.BadParams) > 0 || s.Counters.Crashes > 0 || s.Counters.WrongKV > 0 {
			t.Errorf("%s: %q, %q, %+v", role, s.Violations, s.BadParams, s.Counters)
		}
	}
}
