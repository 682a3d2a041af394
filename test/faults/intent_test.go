package faults_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// An agent that registers again does not undo a drain.
func TestFault22_DrainThenRegister(t *testing.T) {
	row(t, 22)
	r := build(t, plan{proxies: 2})
	l := r.load()
	for i, role := range []instance.Role{instance.Prefill, instance.Decode} {
		nodes := [][]*fleet.Node{r.prefill, r.decode}[i]
		n := nodes[1]
		r.mustPdctl("drain", string(role), n.Address, "--wait", "--timeout", "1m", "--reason", "row 22")
		before := requestsOf(t, n)
		// First only the agent restarts, with the same engine, then both restart.
		require.NoError(t, n.Agent.Kill())
		<-n.Agent.Done()
		require.NoError(t, n.StartAgent(t.Context(), r.agents...))
		r.awaitAgent(n, registrationIs(lease.Registered))
		r.awaitReady(n.Address, instance.Drain)
		l.Served(40)
		picks := requestsOf(t, n) - before
		n = r.restart(n)
		nodes[1] = n
		r.awaitReady(n.Address, instance.Drain)
		l.Served(40)
		picks += requestsOf(t, n)
		counted(t, 22, string(role)+": picks while drained, its agent and its engine restarted", picks, 0)
		assert.EqualValues(t, 0, picks, "requests went to %s", n.Address)
		r.mustPdctl("undrain", string(role), n.Address)
		r.awaitReady(n.Address, "")
		testkit.Until(t, soon, func() int64 { return requestsOf(t, n) }, func(n int64) bool { return n != 0 })
	}
	l.FinishUncut()
}

// An instance that an operator removed stays removed, whatever its agent does.
func TestFault23_RemovedStaysOut(t *testing.T) {
	row(t, 23)
	etcd := etcdtest.Start(t)
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxies: 2})
	h := record(t, etcd.Client(t), "/pd/")
	l := r.load()
	n := r.decode[1]
	earlier := len(h.of(keyOf(t, n)))
	r.mustPdctl("remove", "decode", n.Address, "--reason", "row 23")
	r.awaitAgent(n, func(rep agentctl.Report) error {
		if rep.Registration.Phase == string(lease.Registered) {
			return fmt.Errorf("%s still is registered", rep.Address)
		}
		return nil
	})
	r.awaitEntry(n.Address, func(in instance.Listing, ok bool) bool { return !ok || in.Intent == instance.Removed })
	l.Turn()
	before := requestsOf(t, n)
	wait(t, outage(2*ttl, 10*ttl)) // its agent checks its key once in each TTL
	n = r.restart(n)
	r.awaitAgent(n, func(rep agentctl.Report) error {
		if rep.Registration.Phase == "" || rep.Registration.Reason == "" {
			return fmt.Errorf("the agent reports %+v", rep.Registration)
		}
		return nil
	})
	wait(t, 2*ttl)
	l.Served(40)
	got := requestsOf(t, n)
	assert.True(t, got == 0 && before != 0, "%d requests went to the removed instance, %d before", got, before)
	var puts int64
	deleted := false
	for _, e := range h.of(keyOf(t, n))[earlier:] {
		if deleted && !e.Deleted {
			puts++
		}
		deleted = deleted || e.Deleted
	}
	counted(t, 23, "writes of the record while the removal stood", puts, 0)
	if puts != 0 || !deleted {
		t.Errorf("%d writes after the removal (deleted: %t): %+v", puts, deleted, h.of(keyOf(t, n)))
	}
	r.mustPdctl("allow", "decode", n.Address)
	r.awaitReady(n.Address, "")
	l.FinishUncut()
}
