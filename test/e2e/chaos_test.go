package e2e_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
	"github.com/pdmesh/pdmesh/test/harness"
)

// chaosTime returns the duration of TestChaos; PD_TEST_E2E_CHAOS=60s selects the long form.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("PD_TEST_E2E_CHAOS")
	if s == "" {
		return 12 * time.Second
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err)
	return d
}

// faults sets the faults of an engine over HTTP; an empty fault clears them.
func faults(t *testing.T, n *fleet.Node, fault string) {
	t.Helper()
	method := http.MethodPost
	if fault == "" {
		method = http.MethodDelete
	}
	resp, text, err := harness.Send(t.Context(), method, "http://"+n.Address+"/fake/faults", fault)
	require.NoError(t, err)
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s /fake/faults: %s %s", method, resp.Status, text)
	}
}

// Every two seconds one of eight instances is killed, hung or made to answer 503, and restored two
// seconds later. No uncommitted request fails.
func TestChaos(t *testing.T) {
	longform.Test(t)
	etcd := testkit.StartEtcdProcess(t).Endpoint()
	f := newFleet(t)
	p := proxies(t, f, etcd, 1)[0]
	var nodes []*fleet.Node
	start := func(name string, role instance.Role, port int) *fleet.Node {
		n := startNode(t, f, fleet.NodeSpec{
			Name: name, Role: role, Port: port, Connector: "nixl", Model: model, Etcd: []string{etcd}, TTL: 5 * time.Second,
			ITL: time.Millisecond, EngineArgs: []string{"--faults"},
		})
		return n
	}
	for _, role := range instance.Roles() {
		for i := range 4 {
			nodes = append(nodes, start(fmt.Sprintf("%s-%d", role, i+1), role, 0))
		}
	}
	require.NoError(t, p.WaitFor(t.Context(), 4, 4))
	l := startLoad(t, 64, p.URL())
	l.served(200)
	end := time.NewTimer(chaosTime(t))
	defer end.Stop()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	rnd := rand.New(rand.NewPCG(1, 2))
	restore := func() {}
	counts := map[string]int{}
	for over := false; !over; {
		select {
		case <-end.C:
			over = true
		case <-tick.C:
		}
		restore()
		if over {
			break
		}
		i := rnd.IntN(len(nodes))
		n := nodes[i]
		what := []string{"killed", "hung", "503"}[rnd.IntN(3)]
		counts[what]++
		switch what {
		case "killed":
			require.NoError(t, n.Kill())
			restore = func() { nodes[i] = start(n.Spec.Name, n.Spec.Role, portOf(t, n.Address)) }
		case "hung":
			require.NoError(t, n.Engine.Signal(syscall.SIGSTOP))
			restore = func() {
				require.NoError(t, n.Engine.Signal(syscall.SIGCONT))
			}
		default:
			faults(t, n, `{"kind":"status","status":503,"path":"/v1/*"}`)
			restore = func() { faults(t, n, "") }
		}
	}
	l.served(200)
	l.finish()
	t.Logf("faults: %v; retries by class:\n%s", counts, retries(t, p.URL()))
	testkit.Eventually(t, soon, func() error {
		if n := metric(t, p.URL(), "pd_instance_in_flight"); n != 0 {
			return fmt.Errorf("%v legs in flight after the end", n)
		}
		return nil
	})
}

func retries(t *testing.T, url string) string {
	t.Helper()
	var out bytes.Buffer
	for line := range bytes.Lines(get(t, url+"/metrics")) {
		if bytes.HasPrefix(line, []byte("pd_forward_retries_total{")) {
			out.Write(line)
		}
	}
	return out.String()
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	var port int
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	return port
}
