package faults_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// engines starts an engine of each role without an agent.
func (r *rig) engines() {
	r.t.Helper()
	r.prefill = append(r.prefill, r.bare(instance.Prefill, "prefill-flags"))
	r.decode = append(r.decode, r.bare(instance.Decode, "decode-flags"))
}

// Instances given by flags are used while etcd accepts no writes, and remain in use after it
// accepts them again.
func TestFault35_CommandLineWithoutSpace(t *testing.T) {
	row(t, 35)
	etcd := etcdtest.Start(t, etcdtest.WithQuota(4<<20))
	cli := etcd.Client(t)
	etcdtest.FillUp(t, cli)
	r := &rig{t: t, f: newFleet(t), etcd: []string{etcd.Endpoint()}}
	r.engines()
	r.proxies = append(r.proxies, r.proxy("proxy-1", "--audit-interval", "1s", "--prefill", r.prefill[0].Address, "--decode", r.decode[0].Address))
	r.awaitAll()
	l, p := r.load(), r.startPool()
	require.Equal(t, 0, len(keys(t, cli)), "keys in an etcd without space")
	etcdtest.MakeRoom(t, cli)
	testkit.Eventually(t, soon, func() error {
		want := []string{keyOf(t, r.decode[0]), keyOf(t, r.prefill[0])}
		if got := slices.Sorted(maps.Keys(keys(t, cli))); !slices.Equal(got, want) {
			return fmt.Errorf("keys %q, want %q", got, want)
		}
		return nil
	})
	r.awaitStatus(func(s status) error {
		for _, n := range r.nodes() {
			if in, ok := s.entry(n.Address); !ok || in.Revision == 0 || in.Reason != "" {
				return fmt.Errorf("%+v", in)
			}
		}
		return nil
	})
	l.Served(20)
	p.finish(l, 1)
	// From now on the keys decide: an instance that an operator removes is not used any more.
	mustRun(t, "pdctl", "remove", "--yes", "decode", r.decode[0].Address, "--etcd-endpoints", etcd.Endpoint())
	r.awaitEntry(r.decode[0].Address, func(in instance.Listing, ok bool) bool { return !ok || in.Intent == instance.Removed })
}

// The same while no etcd member answers, and etcd starts later.
func TestFault35_CommandLineWithoutEtcd(t *testing.T) {
	row(t, 35)
	etcd := etcdtest.Start(t)
	etcd.Kill()
	r := &rig{t: t, f: newFleet(t), etcd: []string{etcd.Endpoint()}}
	r.engines()
	r.proxies = append(r.proxies, r.proxy("proxy-1", "--audit-interval", "1s", "--state-dir", "", "--prefill", r.prefill[0].Address, "--decode", r.decode[0].Address))
	r.awaitAll()
	l, p := r.load(), r.startPool()
	etcd.Restart()
	cli := etcd.Client(t)
	testkit.EventuallyEqual(t, soon, func() int { return len(keys(t, cli)) }, 2, "keys")
	r.awaitStatus(etcdIs("live"))
	l.Served(20)
	p.finish(l, 1)
}
