package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// All engines of a fleet have both roles: pairs consist of two different engines, a remaining single
// engine serves decode-only, and the loss of an engine under load fails no request.
func TestFleetOfBoth(t *testing.T) {
	t.Parallel()
	f, etcd, list := proxies(t, 1)
	proxy := list[0]
	nodes := make([]*fleet.Node, 3)
	for i := range nodes {
		nodes[i] = node(t, f, fmt.Sprintf("both-%d", i+1), instance.Both, 0, etcd)
	}
	wait := func(n int) {
		t.Helper()
		require.NoError(t, proxy.WaitFor(t.Context(), n, n))
	}
	wait(3)

	// Every view shows both memberships without a warning.
	agree(t, etcd, []*fleet.Proxy{proxy}, 6)
	s, err := proxy.Status(t.Context())
	require.NoError(t, err)
	for _, in := range s.Instances {
		assert.True(t, in.Reason == "" && in.Warning == "", "%s/%s: %s %s", in.Role, in.Address, in.Reason, in.Warning)
	}

	c := newClient(t, adminKey)
	prefills, decodes := map[string]int{}, map[string]int{}
	for i := range 12 {
		r := complete(t.Context(), c, proxy.URL(), fmt.Sprint("tell me ", i), 5)
		p, d := r.Header.Get("X-Pd-Prefill"), r.Header.Get("X-Pd-Decode")
		require.True(t, r.Err == nil && p != "" && d != "" && p != d && r.Header.Get("X-Pd-Decode-Only") == "",
			"request %d: %v, prefill %q, decode %q, alone %q", i, r.Err, p, d, r.Header.Get("X-Pd-Decode-Only"))
		prefills[p]++
		decodes[d]++
	}
	assert.True(t, len(prefills) == 3 && len(decodes) == 3, "prefill legs %v, decode legs %v", prefills, decodes)
	if p, d := metric(t, proxy.URL(), "pd_both_picks_total", `role="prefill"`, `reason="no_other"`), metric(t, proxy.URL(), "pd_both_picks_total", `role="decode"`, `reason="no_other"`); p != 12 || d != 12 {
		t.Errorf("counted %v picks for prefill, %v for decode", p, d)
	}

	// One engine stops gracefully, another is killed together with its agent.
	l := startLoad(t, 4, proxy.URL())
	l.Served(50)
	require.NoError(t, nodes[0].Agent.Stop(t.Context()))
	wait(2)
	l.Served(50)
	require.NoError(t, nodes[1].Kill())
	l.Served(50)
	l.Finish()

	// The remaining engine serves decode-only and reports the reason.
	testkit.Eventually(t, soon, func() error {
		r := complete(t.Context(), c, proxy.URL(), "and now", 5)
		require.NoError(t, r.Err)
		if why := r.Header.Get("X-Pd-Decode-Only"); why != bypass.SameInstance || r.Header.Get("X-Pd-Decode") != nodes[2].Address {
			return fmt.Errorf("alone %q, on %q", why, r.Header.Get("X-Pd-Decode"))
		}
		return nil
	})
	// A request is counted after its answer.
	testkit.EventuallyTrue(t, soon, func() bool {
		return metric(t, proxy.URL(), "pd_forward_decode_only_total", `reason="same_instance"`) != 0
	}, "it is counted")
}

// An engine with both roles is used if there are no instances of one role.
func TestBothRoles_Fallback(t *testing.T) {
	t.Parallel()
	f, etcd, list := proxies(t, 1)
	proxy := list[0]
	p := node(t, f, "prefill", instance.Prefill, 0, etcd)
	d := node(t, f, "decode", instance.Decode, 0, etcd)
	b := node(t, f, "both", instance.Both, 0, etcd)
	require.NoError(t, proxy.WaitFor(t.Context(), 2, 2))
	c := newClient(t, adminKey)
	pair := func(prefill, decode *fleet.Node, role string) {
		t.Helper()
		before := metric(t, proxy.URL(), "pd_both_picks_total", `role="`+role+`"`, `reason="no_other"`)
		for range 3 {
			r := complete(t.Context(), c, proxy.URL(), "tell me", 5)
			got := r.Header.Get("X-Pd-Prefill") + " " + r.Header.Get("X-Pd-Decode")
			require.True(t, r.Err == nil && got == prefill.Address+" "+decode.Address, "served by %s, %v", got, r.Err)
		}
		n := metric(t, proxy.URL(), "pd_both_picks_total", `role="`+role+`"`, `reason="no_other"`)
		assert.GreaterOrEqual(t, n, before+3, "counted %v times as %s, want 3 more than %v", n, role, before)
	}
	require.NoError(t, p.Agent.Stop(t.Context()))
	require.NoError(t, proxy.WaitFor(t.Context(), 1, 2))
	pair(b, d, "prefill") // never with itself as decode
	require.NoError(t, p.StartAgent(t.Context(), etcd))
	require.NoError(t, d.Agent.Stop(t.Context()))
	require.NoError(t, proxy.WaitFor(t.Context(), 2, 1))
	pair(p, b, "decode") // never with itself as prefill
}

// pdctl and the admin routes add and remove both memberships of an engine at once.
func TestAddBoth(t *testing.T) {
	t.Parallel()
	f, etcd, list := proxies(t, 1)
	proxy := list[0]
	n := node(t, f, "both", instance.Both, 0)
	wait := func(want int) {
		t.Helper()
		require.NoError(t, proxy.WaitFor(t.Context(), want, want))
	}
	revisions := func() {
		t.Helper()
		list := pdctlList(t, etcd)
		p, d := list["prefill/"+n.Address], list["decode/"+n.Address]
		assert.True(t, p.Static && p.Revision != 0 && p.Revision == d.Revision, "not one transaction: %+v", list)
	}
	runProgram(t, "pdctl", "add", "both", n.Address, "--connector", "nixl", "--etcd-endpoints", etcd)
	wait(1)
	revisions()
	out := runProgram(t, "pdctl", "remove", "--yes", "both", n.Address, "--etcd-endpoints", etcd)
	require.True(t, testkit.Contains(t, out, "prefill/"+n.Address, "decode/"+n.Address))
	wait(0)
	assert.Contains(t, add(t, proxy.URL(), adminKey, "both", n.Address), "Added "+n.Address)
	wait(1)
	revisions()
}
