package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// A proxy without free file descriptors can neither connect to an instance nor probe it. That is no
// evidence against the instance: its long prefill continues, and no instance is ejected.
func TestNoDescriptorsLeft(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	f, etcd, list := proxies(t, 1)
	p := list[0]
	for _, role := range instance.Roles() {
		for i := range 2 {
			n := startNode(t, f, fleet.NodeSpec{
				Name: fmt.Sprintf("%s-%d", role, i+1), Role: role, Connector: "nixl", Model: model,
				Etcd: []string{etcd}, TTL: 20 * time.Second, EngineArgs: []string{"--faults"},
			})
			if role == instance.Prefill {
				resp, text, err := harness.Send(t.Context(), http.MethodPost, "http://"+n.Address+"/fake/faults", `{"kind":"slow","ttft":"15s","path":"/v1/completions"}`)
				require.NoError(t, err)
				require.Equal(t, 2, resp.StatusCode/100, "/fake/faults: %s %s", resp.Status, text)
			}
		}
	}
	require.NoError(t, p.WaitFor(t.Context(), 2, 2))
	c := newClient(t, adminKey)
	result := make(chan loadgen.Result, 1)
	go func() { result <- complete(t.Context(), c, p.URL(), "a long prompt", 5) }()
	inFlight := func() float64 { return metric(t, p.URL(), "pd_instance_in_flight") }
	testkit.EventuallyEqual(t, soon, inFlight, 1)
	restore := noDescriptors(t, p)
	const ejected, notAsked = "instance ejected", "a silent instance could not be probed"
	log := func() string {
		b, err := os.ReadFile(p.LogFile())
		require.NoError(t, err)
		return string(b)
	}
	testkit.Eventually(t, soon, func() error {
		if s := log(); !strings.Contains(s, notAsked) && !strings.Contains(s, ejected) {
			return fmt.Errorf("no instance has been probed yet:\n%s", p.LogTail(5))
		}
		return nil
	})
	restore()
	r := <-result
	assert.True(t, r.Err == nil && r.Header.Get("X-Pd-Attempts") == "1",
		"%v after %s attempts", r.Err, r.Header.Get("X-Pd-Attempts"))
	if s := log(); strings.Contains(s, ejected) {
		t.Errorf("an instance was ejected:\n%s", s)
	}
}

// noDescriptors prevents a process from opening files until restore is called.
func noDescriptors(t *testing.T, p *fleet.Proxy) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &was))
	require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil))
	return func() {
		t.Helper()
		require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &was, nil))
	}
}
