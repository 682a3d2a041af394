package faults_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// awaitLog waits until a process has logged a line that contains all of the texts.
func awaitLog(t testing.TB, p *fleet.Process, texts ...string) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		raw, err := os.ReadFile(p.LogFile())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return nil
			}
		}
		return fmt.Errorf("%s has not logged %q; its log:\n%s", p.Name(), texts, p.LogTail(5))
	})
}

// The members of etcd are replaced one by one with members at other addresses, until none is left that
// proxies and agents were configured with. All processes follow, no lease is lost, a new instance is
// discovered, and a restarted proxy finds the members through its state directory.
func TestFault34_MembersReplaced(t *testing.T) {
	row(t, 34)
	host := etcdtest.OutsideAddress(t)
	c := etcdtest.StartCluster(t, longform.Count(2, 3))
	state := stateDir(t)
	r := build(t, plan{etcd: c.Endpoints(), prefill: 1, decode: 1, ttl: longer, proxyArgs: []string{"--audit-interval", "1s", "--state-dir", state}})
	configured := slices.Sorted(slices.Values(c.Endpoints()))
	before := keys(t, c.Client(t))
	l, p := r.load(), r.startPool()
	for _, m := range slices.Clone(c.Members) {
		fresh := c.Replace(m, host)
		r.awaitStatus(func(s status) error {
			if !slices.Contains(s.Etcd.Members, fresh.Endpoint()) || !slices.Contains(s.Etcd.Departed, m.Endpoint()) || s.Etcd.State != "live" {
				return fmt.Errorf("%s replaced by %s: %+v", m.Endpoint(), fresh.Endpoint(), s.Etcd)
			}
			return nil
		})
		for _, n := range r.nodes() {
			awaitLog(t, n.Agent, "etcd endpoints changed", fresh.Endpoint())
		}
	}
	for _, n := range r.nodes() {
		r.awaitAgent(n, registrationIs(lease.Registered))
	}
	cli := c.Client(t)
	for k, a := range keys(t, cli) {
		b := before[k]
		assert.True(t, a.Lease == b.Lease && a.Create == b.Create, "%s: before %+v, after %+v", k, b, a)
	}
	// A new instance at an etcd member that no proxy was configured with.
	fresh := decodeAt(7)
	members.Put(t, cli, members.Layout(t).Instance(fresh), `{"v":1,"models":["other/model"],"state":"draining"}`)
	sees := func(s status) error {
		if _, ok := s.entry(fresh.Address); !ok {
			return fmt.Errorf("%s is not known; etcd is %+v", fresh.Address, s.Etcd)
		}
		return nil
	}
	r.awaitStatus(sees)
	r.awaitStatus(func(s status) error {
		if departed := slices.Sorted(slices.Values(s.Etcd.Departed)); !slices.Equal(departed, configured) {
			return fmt.Errorf("departed: %q", departed)
		}
		if !slices.ContainsFunc(s.Notices, func(n string) bool {
			return strings.Contains(n, configured[0]) && strings.Contains(n, "--etcd-endpoints")
		}) {
			return fmt.Errorf("notices: %q", s.Notices)
		}
		return nil
	})
	// pdctl doctor reads it from the proxy.
	out, _ := command(t, "pdctl", "doctor", "--etcd-endpoints", strings.Join(c.Endpoints(), ","))
	require.Contains(t, out, configured[0]+" is not a member of the cluster, or does not answer")
	l.Served(20)
	p.finish(l, 1)
	// A new process with the same configuration and state directory.
	require.NoError(t, r.proxies[0].Stop(t.Context()))
	r.proxies = append(r.proxies[:0], r.proxy("proxy-again", "--audit-interval", "1s", "--state-dir", state))
	r.awaitStatus(sees)
	r.awaitStatus(etcdIs("live"))
	r.agents = c.Endpoints()
	r.decode = append(r.decode, r.node(instance.Decode, 2, longer, "--allow-loopback"))
	r.awaitAll()
}
