package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

// roleRig is a fleet of three proxies and four engines in both roles.
type roleRig struct {
	t       *testing.T
	etcd    *etcdtest.Server
	proxies []*fleet.Proxy
	nodes   []*fleet.Node
}

// set changes a role by the admin route of a proxy.
func (r *roleRig) set(proxy int, node *fleet.Node, role instance.Role) (status int, revision int64) {
	r.t.Helper()
	body := fmt.Sprintf(`{"type":%q,"instance":%q,"reason":"test"}`, role, node.Address)
	resp, text, err := harness.Send(r.t.Context(), http.MethodPost, r.proxies[proxy].URL()+"/instances/role", body, "X-Api-Key", adminKey)
	if err != nil {
		return 0, 0
	}
	var answer struct{ Revision int64 }
	_ = json.Unmarshal([]byte(text), &answer)
	return resp.StatusCode, answer.Revision
}

// interrupted begins a change that etcd does not answer, calls f, and returns the status of the change;
// 0 if it has none.
func (r *roleRig) interrupted(l *harness.Load, proxy int, node *fleet.Node, role instance.Role, f func()) (status int) {
	r.t.Helper()
	r.etcd.Pause()
	var change sync.WaitGroup
	change.Go(func() { status, _ = r.set(proxy, node, role) })
	l.Served(20) // requests do not wait for etcd
	f()
	change.Wait()
	return status
}

// roles returns the roles in which a proxy uses each engine.
func (r *roleRig) roles(proxy int) (string, error) {
	s, err := r.proxies[proxy].Status(r.t.Context())
	if err != nil {
		return "", err
	}
	var out []string
	for _, n := range r.nodes {
		is := ""
		for _, in := range s.Instances {
			if in.Address == n.Address && in.Status == string(instance.Ready) {
				is += string(in.Role)[:1]
			}
		}
		out = append(out, is)
	}
	return strings.Join(out, " "), nil
}

// agree waits until all given proxies use the engines in the same roles, which are one of wants.
func (r *roleRig) agree(wants []string, proxies ...int) {
	r.t.Helper()
	testkit.Eventually(r.t, soon, func() error {
		first := ""
		for _, p := range proxies {
			got, err := r.roles(p)
			if first == "" {
				first = got
			}
			if err != nil || got != first || !slices.Contains(wants, got) {
				return fmt.Errorf("proxy %d uses %q, the first one %q, want one of %q: %w", p, got, first, wants, err)
			}
		}
		return nil
	})
}

// Engines change their roles under load without a lost request or a cut stream. This also holds if two
// proxies change a role at the same moment, a proxy is stopped or killed during a change, or etcd is lost
// during one.
func TestRoleChanges(t *testing.T) {
	t.Parallel()
	r := &roleRig{t: t, etcd: etcdtest.Start(t)}
	f := newFleet(t)
	endpoint := r.etcd.Endpoint()
	r.proxies = proxiesOn(t, f, endpoint, 3)
	for i := range 4 {
		r.nodes = append(r.nodes, node(t, f, fmt.Sprintf("both-%d", i+1), instance.Both, 0, endpoint))
	}
	r.agree([]string{"pd pd pd pd"}, 0, 1, 2)
	steady := startLoad(t, 6, r.proxies[0].URL(), r.proxies[1].URL())
	third := harness.StartRetryingLoad(t, model, 2, 10*time.Millisecond, r.proxies[2].URL(), r.proxies[0].URL()) // its clients go to the next proxy if one refuses a connection
	steady.Served(30)

	const moves = 12 // by each proxy, of each engine to each role
	last := int64(0)
	for i := range moves {
		role := instance.Roles()[(i/2)%2]
		status, revision := r.set(i%3, r.nodes[i%2], role)
		require.True(t, status == http.StatusOK && revision > last,
			"move %d: status %d, revision %d after %d", i, status, revision, last)
		last = revision
		steady.Served(5)
	}
	runProgram(t, "pdctl", "--etcd-endpoints", endpoint, "role", "decode", r.nodes[0].Address, "--wait", "--timeout", "2m")
	runProgram(t, "pdctl", "--etcd-endpoints", endpoint, "role", "prefill", r.nodes[1].Address, "--wait", "--timeout", "2m")
	r.agree([]string{"d p pd pd"}, 0, 1, 2)

	// Two proxies change roles at the same moment: one engine gets one role, and two engines do not leave a
	// role without an engine.
	var wg sync.WaitGroup
	for i, role := range instance.Roles() {
		wg.Go(func() { r.set(i, r.nodes[2], role) })
	}
	wg.Wait()
	steady.Served(5)
	r.agree([]string{"d p d pd", "d p p pd"}, 0, 1, 2)
	if status, _ := r.set(0, r.nodes[2], instance.Decode); status != http.StatusOK {
		t.Fatal(status)
	}
	statuses := make([]int, 2)
	for i, at := range []int{1, 3} { // the last two engines that serve prefill
		wg.Go(func() { statuses[i], _ = r.set(i, r.nodes[at], instance.Decode) })
	}
	wg.Wait()
	assert.Equal(t, http.StatusOK+http.StatusBadRequest, statuses[0]+statuses[1], "both left prefill: %v", statuses)
	r.agree([]string{"d p d d", "d d d pd"}, 0, 1, 2)
	steady.Served(5)

	// Node 0 changes to prefill, completely or not at all, whatever happens meanwhile.
	either := []string{"d p d d", "d d d pd", "p p d d", "p d d pd"}
	var stopped error
	r.interrupted(steady, 2, r.nodes[0], instance.Prefill, func() {
		wg.Go(func() { stopped = r.proxies[2].Stop(t.Context()) })
		r.etcd.Resume()
		wg.Wait()
	})
	require.NoError(t, stopped)
	third.FinishUncut()
	r.agree(either, 0, 1)

	again := func() {
		t.Helper()
		p, err := f.StartProxy(t.Context(), r.proxies[2].Spec)
		require.NoError(t, err)
		r.proxies[2] = p
	}
	again()
	r.agree(either, 0, 1, 2)
	r.interrupted(steady, 2, r.nodes[0], instance.Prefill, func() {
		require.NoError(t, r.proxies[2].Kill())
		r.etcd.Resume()
	})
	r.agree(either, 0, 1)

	// Without etcd, changes are refused, and requests continue.
	status := r.interrupted(steady, 0, r.nodes[0], instance.Decode, r.etcd.Kill)
	if more, _ := r.set(1, r.nodes[0], instance.Both); status != http.StatusServiceUnavailable || more != http.StatusServiceUnavailable {
		t.Errorf("etcd was lost: %d, %d", status, more)
	}
	steady.Served(20)
	r.etcd.Restart()
	r.agree(either, 0, 1)
	for _, n := range r.nodes {
		testkit.Eventually(t, soon, func() error {
			if status, _ := r.set(0, n, instance.Both); status != http.StatusOK {
				return fmt.Errorf("%s: %d", n.Address, status)
			}
			return nil
		})
	}
	r.agree([]string{"pd pd pd pd"}, 0, 1)
	steady.FinishUncut()
	t.Logf("%d changes, %d answers", moves, steady.Answered()+third.Answered())
}
