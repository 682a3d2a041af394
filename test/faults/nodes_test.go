package faults_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// awaitDeletion waits for the deletion of a node's key.
func awaitDeletion(t testing.TB, h *history, n *fleet.Node) change {
	t.Helper()
	var e change
	testkit.Eventually(t, soon, func() error {
		var ok bool
		if e, ok = h.deleted(keyOf(t, n)); !ok {
			return fmt.Errorf("%s is still registered", n.Address)
		}
		return nil
	})
	return e
}

// The agent stops and its engine does not: the instance is used as an orphan until the grace period
// ends, since most instances of its role are registered.
func TestFault01_AgentKilled(t *testing.T) {
	row(t, 1)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, decode: 3, proxyArgs: []string{"--audit-interval", "2s", "--orphan-grace", "12s"}})
	h := record(t, etcd.Client(t), "/pd/")
	l := r.load()
	victim := r.decode[2]
	killed := time.Now()
	require.NoError(t, victim.Agent.Kill())
	measured(t, 1, "kill to DELETE (TTL 3 s)", awaitDeletion(t, h, victim).At.Sub(killed), ttl+time.Second)
	r.awaitStatus(func(s status) error {
		if in, ok := s.entry(victim.Address); !ok || in.View != instance.Orphan || !slices.Contains(s.DecodeNodes, victim.Address) {
			return fmt.Errorf("%s is %+v", victim.Address, in)
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		out, code := command(t, "pdctl", "doctor", "--agents=false", "--etcd-endpoints", etcd.Endpoint())
		if code != 5 || !contains(out, "no longer registered are used while they answer: decode/"+victim.Address+".") {
			return fmt.Errorf("doctor: exit %d\n%s", code, out)
		}
		return nil
	})
	l.Served(20)
	r.awaitStatus(func(s status) error {
		if slices.Contains(s.DecodeNodes, victim.Address) {
			return fmt.Errorf("%s is still served", victim.Address)
		}
		return nil
	})
	l.Served(20)
	l.Finish()
}

// Engine and agent stop together: the instance is removed at the first refused connection, long
// before its lease expires.
func TestFault02_NodeKilled(t *testing.T) {
	row(t, 2)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}})
	h := record(t, etcd.Client(t), "/pd/")
	l := r.load()
	for _, victim := range []*fleet.Node{r.prefill[1], r.decode[1]} {
		killed := time.Now()
		require.NoError(t, victim.Kill())
		r.awaitEntry(victim.Address, func(in instance.Listing, ok bool) bool { return !ok || in.View != "" })
		measured(t, 2, string(victim.Spec.Role)+": kill to not being picked any more", time.Since(killed), time.Second)
		measured(t, 2, string(victim.Spec.Role)+": kill to DELETE (TTL 3 s)", awaitDeletion(t, h, victim).At.Sub(killed), ttl+time.Second)
	}
	l.Served(20)
	l.Finish()
}

// The engine hangs: its agent reports it as down, and the requests that wait for it are retried on
// another instance.
func TestFault03_EngineHangs(t *testing.T) {
	row(t, 3)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, ttl: longer, agentArgs: []string{"--probe-timeout", "500ms"}})
	h := record(t, etcd.Client(t), "/pd/")
	l := r.load()
	for _, victim := range []*fleet.Node{r.prefill[0], r.decode[0]} {
		hung := time.Now()
		require.NoError(t, victim.Engine.Signal(syscall.SIGSTOP))
		r.awaitEntry(victim.Address, func(in instance.Listing, ok bool) bool { return ok && (in.State == instance.Down || in.View != "") })
		measured(t, 3, string(victim.Spec.Role)+": hang to out, by its agent or by the proxy", time.Since(hung), 3*time.Second)
		l.Served(20)
		require.NoError(t, victim.Engine.Signal(syscall.SIGCONT))
		r.awaitAll()
	}
	l.Finish()
	for _, n := range r.nodes() {
		if e, ok := h.deleted(keyOf(t, n)); ok {
			t.Errorf("%s was deleted: %+v", n.Address, e)
		}
	}
}

// A graceful stop cuts no stream.
func TestFault04_GracefulStop(t *testing.T) {
	row(t, 4)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, ttl: longer})
	h := record(t, etcd.Client(t), "/pd/")
	l := r.load()
	for _, victim := range []*fleet.Node{r.prefill[1], r.decode[1]} {
		require.NoError(t, control(t, r.f, victim).Drain(t.Context()))
		awaitDeletion(t, h, victim)
		<-victim.Agent.Done()
		assert.NoError(t, victim.Agent.Err(), "the agent ended with")
		// As a supervisor does: the engine stops after its agent.
		require.NoError(t, victim.Engine.Stop(t.Context()))
		var states []string
		for _, e := range h.of(keyOf(t, victim)) {
			var rec instance.Record
			switch err := json.Unmarshal([]byte(e.Value), &rec); {
			case e.Deleted:
				states = append(states, "deleted")
			case err != nil:
				t.Errorf("%q: %v", e.Value, err)
			default:
				states = append(states, string(rec.State))
			}
		}
		assert.Equal(t, "[draining deleted]", fmt.Sprint(states), victim.Address)
	}
	l.Served(20)
	l.FinishUncut()
	// The time from revocation to event, measured without a proxy or agent.
	cli := members.Dial(t, etcd.Endpoint())
	k := prefillAt(1)
	reg := register(t, cli, k, ttl)
	start := time.Now()
	require.NoError(t, reg.Revoke(t.Context()))
	testkit.Eventually(t, soon, func() error {
		if _, ok := h.deleted(members.Layout(t).Instance(k)); !ok {
			return errNotYet
		}
		return nil
	})
	e, _ := h.deleted(members.Layout(t).Instance(k))
	measured(t, 4, "revoke to DELETE", e.At.Sub(start), 50*time.Millisecond)
}
