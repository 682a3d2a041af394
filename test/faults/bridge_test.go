package faults_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

// Engines that register by pings are removed when the engine or the bridge that receives its
// pings stops, and registered again when it returns.
func TestFault32_PingsEnd(t *testing.T) {
	row(t, 32)
	ttl := lastingTTL() // that of the witness must not expire
	toDelete := fmt.Sprintf(" to DELETE (TTL %.0f s)", ttl.Seconds())
	etcd := etcdtest.Start(t)
	h := record(t, etcd.Client(t), "/pd/")
	f := newFleet(t)
	pingTo := "tcp://" + testkit.FreePort(t)
	bridge := func(name string) *fleet.Process {
		p, err := f.Start(t.Context(), fleet.Spec{Name: name, Program: "agent", Args: []string{
			"--zmq-register", pingTo, "--etcd-endpoints", etcd.Endpoint(), "--ttl", ttl.String(), "--allow-short-ttl"}})
		require.NoError(t, err)
		return p
	}
	engine := func(name string) *fleet.Node {
		n, err := f.StartNode(t.Context(), fleet.NodeSpec{Name: name, Role: instance.Decode, Connector: "moriio_write", Model: harness.Model,
			EngineArgs: []string{"--ping-to", pingTo, "--ping-interval", "200ms"}})
		require.NoError(t, err)
		return n
	}
	first := bridge("bridge-1")
	killed, stopped, witness := engine("killed"), engine("stopped"), engine("witness")
	for _, n := range []*fleet.Node{killed, stopped, witness} {
		awaitRegistered(t, h, n, time.Time{})
	}

	at := time.Now()
	require.NoError(t, killed.Engine.Kill())
	require.NoError(t, stopped.Engine.Signal(syscall.SIGSTOP))
	measured(t, 32, "engine killed"+toDelete, awaitDeletion(t, h, killed).At.Sub(at), ttl+time.Second)
	measured(t, 32, "engine hangs"+toDelete, awaitDeletion(t, h, stopped).At.Sub(at), ttl+time.Second)
	if e, ok := h.deleted(keyOf(t, witness)); ok {
		t.Fatalf("an engine that pings was removed: %+v", e)
	}
	at = time.Now()
	require.NoError(t, stopped.Engine.Signal(syscall.SIGCONT))
	measured(t, 32, "engine goes on to its registration", awaitRegistered(t, h, stopped, at).Sub(at), 0)

	at = time.Now()
	require.NoError(t, first.Kill())
	measured(t, 32, "bridge killed"+toDelete, awaitDeletion(t, h, witness).At.Sub(at), ttl+time.Second)
	at = time.Now()
	bridge("bridge-2")
	measured(t, 32, "bridge started again to the registration", awaitRegistered(t, h, witness, at).Sub(at), 0)
}

// awaitRegistered waits until an engine has been written to etcd as ready after the given time, and
// returns the time of that write.
func awaitRegistered(t *testing.T, h *history, n *fleet.Node, after time.Time) (at time.Time) {
	t.Helper()
	k := instance.Key{Role: n.Spec.Role, Address: n.Address}
	testkit.Eventually(t, soon, func() error {
		events := h.of(keyOf(t, n))
		if len(events) == 0 {
			return fmt.Errorf("%s was never registered", n.Address)
		}
		e := events[len(events)-1]
		if e.Deleted || !e.At.After(after) {
			return fmt.Errorf("%s is not registered", n.Address)
		}
		if rec, _, err := schema.DecodeRecord(k, []byte(e.Value)); err != nil || rec.State != instance.Ready {
			return fmt.Errorf("%s is %q, %w", n.Address, rec.State, err)
		}
		at = e.At
		return nil
	})
	return at
}
