package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// roleRig is a fleet of three proxies and four engines in both roles, under load.
type roleRig struct {
	t       *testing.T
	etcd    *testkit.Etcd
	proxies []*fleet.Proxy
	nodes   []*fleet.Node
}

// set changes a role by the admin route of a proxy.
func (r *roleRig) set(proxy int, node *fleet.Node, role instance.Role) (status int, revision int64) {
	r.t.Helper()
	body := fmt.Sprintf(`{"type":%q,"instance":%q,"reason":"test"}`, role, node.Address)
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.proxies[proxy].URL()+"/instances/role", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", adminKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct{ Revision int64 }
	_ = json.NewDecoder(resp.Body).Decode(&answer)
	return resp.StatusCode, answer.Revision
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

// agreed waits until all given proxies use the engines in these roles.
func (r *roleRig) agreed(want string, proxies ...int) {
	r.t.Helper()
	testkit.Eventually(r.t, soon, func() error {
		for _, p := range proxies {
			if got, err := r.roles(p); err != nil || got != want {
				return fmt.Errorf("proxy %d uses %q, want %q: %w", p, got, want, err)
			}
		}
		return nil
	})
}

// Engines change their roles under load, and no request is lost and no stream cut: also if two
// proxies change a role at the same moment, a proxy is killed, or etcd stops.
func TestRoleChanges(t *testing.T) {
	t.Parallel()
	r := &roleRig{t: t, etcd: testkit.StartEtcd(t)}
	f := newFleet(t)
	endpoint := r.etcd.Endpoint()
	r.proxies = proxies(t, f, endpoint, 3)
	for i := range 4 {
		r.nodes = append(r.nodes, node(t, f, fmt.Sprintf("both-%d", i+1), instance.Both, 0, endpoint))
	}
	r.agreed("pd pd pd pd", 0, 1, 2)
	load := startLoad(t, 6, r.proxies[0].URL(), r.proxies[1].URL()) // the third one is killed
	load.served(30)

	moves := longform.Count(10, 50)
	for i := range moves {
		role := instance.Roles()[(i/2)%2]
		if status, _ := r.set(i%3, r.nodes[i%2], role); status != http.StatusOK {
			t.Fatalf("move %d: %d", i, status)
		}
		load.served(5)
	}
	runProgram(t, "pdctl", "--etcd-endpoints", endpoint, "role", "decode", r.nodes[0].Address, "--wait", "--timeout", "2m")
	runProgram(t, "pdctl", "--etcd-endpoints", endpoint, "role", "prefill", r.nodes[1].Address, "--wait", "--timeout", "2m")
	r.agreed("d p pd pd", 0, 1, 2)

	// Two proxies at the same moment: one engine gets one role, and two engines do not leave a role
	// without an engine.
	var wg sync.WaitGroup
	for i, role := range instance.Roles() {
		wg.Go(func() { r.set(i, r.nodes[2], role) })
	}
	wg.Wait()
	load.served(5)
	testkit.Eventually(t, soon, func() error {
		got, err := r.roles(0)
		if err != nil || got != "d p d pd" && got != "d p p pd" {
			return fmt.Errorf("%q: %w", got, err)
		}
		return nil
	})
	if status, _ := r.set(0, r.nodes[2], instance.Decode); status != http.StatusOK {
		t.Fatal(status)
	}
	if status, _ := r.set(0, r.nodes[3], instance.Both); status != http.StatusOK {
		t.Fatal(status)
	}
	statuses := make([]int, 2)
	for i, at := range []int{1, 3} { // the last two that serve prefill
		wg.Go(func() { statuses[i], _ = r.set(i, r.nodes[at], instance.Decode) })
	}
	wg.Wait()
	if statuses[0]+statuses[1] != http.StatusOK+http.StatusBadRequest {
		t.Errorf("both left prefill: %v", statuses)
	}
	load.served(5)

	// A proxy is killed during a change: it was made completely, or not at all.
	wg.Go(func() { r.set(2, r.nodes[0], instance.Prefill) })
	if err := r.proxies[2].Kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	load.served(5)
	testkit.Eventually(t, soon, func() error {
		got, err := r.roles(1)
		if is, _, _ := strings.Cut(got, " "); err != nil || is != "d" && is != "p" {
			return fmt.Errorf("%q: %w", got, err)
		}
		return nil
	})

	// Without etcd, changes are refused, and requests go on.
	r.etcd.Stop()
	if status, _ := r.set(0, r.nodes[0], instance.Both); status != http.StatusServiceUnavailable {
		t.Errorf("without etcd: %d", status)
	}
	load.served(20)
	r.etcd.Restart()
	for _, n := range r.nodes {
		testkit.Eventually(t, soon, func() error {
			if status, _ := r.set(0, n, instance.Both); status != http.StatusOK {
				return fmt.Errorf("%s: %d", n.Address, status)
			}
			return nil
		})
	}
	r.agreed("pd pd pd pd", 0, 1)
	load.finish()
	t.Logf("%d changes, %d answers, %d cut, %d broken", moves, load.Answered(), load.Cut(), load.Broken())
}
