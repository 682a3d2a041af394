package e2e_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Requests that wait in a decode engine's queue for longer than every timeout of a leg, and than the
// budget of their KV transfer, are sent once: the engine's metrics show progress.
func TestQueuedRequestsAreServedOnce(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t).Endpoint()
	f := newFleet(t)
	p := startProxy(t, f, "proxy", etcd, "--connector", "nixl", "--scrape-interval", "100ms",
		"--decode-first-byte-timeout", "5s", "--idle-timeout", "5s", "--prefill-timeout", "5s", "--kv-lease-budget", "8s")
	nodes := map[instance.Role]*fleet.Node{}
	for role, args := range map[instance.Role][]string{instance.Prefill: nil, instance.Decode: {"--max-num-seqs", "1", "--itl", "200ms"}} {
		nodes[role] = startNode(t, f, fleet.NodeSpec{
			Name: string(role), Role: role, Connector: "nixl", Model: model, Etcd: []string{etcd},
			EngineArgs: append(args, "--strict", "--faults"),
		})
	}
	require.NoError(t, p.WaitFor(t.Context(), 1, 1))
	const requests = 4 // of about 6 s each, one after the other
	c := newClient(t, adminKey)
	var work sync.WaitGroup
	for i := range requests {
		work.Go(func() {
			r := complete(t.Context(), c, p.URL(), fmt.Sprint("request ", i), 30)
			if alone := r.Header.Get("X-Pd-Decode-Only"); r.Err != nil || alone != "" || r.Header.Get("X-Pd-Attempts") != "1" {
				t.Errorf("%v, decode-only %q, attempts %s", r.Err, alone, r.Header.Get("X-Pd-Attempts"))
			}
		})
	}
	work.Wait()
	for role, n := range nodes {
		if s := stateOf(t, n); s.Counters.Requests != requests || s.Counters.LocalPrefills != 0 && role == instance.Decode || s.Counters.WrongKV != 0 {
			t.Errorf("%s: %+v", role, s.Counters)
		}
	}
	assert.EqualValues(t, 0, metric(t, p.URL(), "pd_forward_retries_total"), "legs were retried")
}
