package e2e_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
	"github.com/pdmesh/pdmesh/test/harness"
)

// part is a process of the topology that the test kills and starts again.
type part struct {
	name string
	kind string // etcd, proxy or agent
	// lapses is set if the test waits until the lease of the agent has expired.
	lapses  bool
	process func() *fleet.Process
	start   func() error
}

// Runs the topology of docker-compose.yml as processes: each etcd member, each proxy and each agent is
// killed under load and restarted. Clients that switch to the other proxy when a connection is refused
// see no failure, except for the responses in flight through a killed proxy.
func TestTopology(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	f := newFleet(t)
	r, err := f.Launch(t.Context(), fleet.Topology{
		Etcd: 3, Proxies: 2, Prefill: 2, Decode: 2,
		ProxyArgs: []string{"--connector", "nixl"},
		Node:      fleet.NodeSpec{Connector: "nixl", Model: model, TTFT: 150 * time.Millisecond, ITL: 25 * time.Millisecond},
	})
	require.NoError(t, err)
	if n := len(f.Running()); n != 13 {
		t.Fatalf("%d processes run, want 13: %v", n, names(f.Running()))
	}
	serving(t, r.Proxies, 0)
	const clients = 12
	l := harness.StartRetryingLoad(t, model, clients, 0, r.Proxies[0].URL(), r.Proxies[1].URL())
	l.Served(2 * clients)
	before := pids(f.Running())
	parts := killable(t, f, r)
	if len(parts) != 9 {
		t.Fatalf("%d processes to kill, want 9", len(parts))
	}
	for _, p := range parts {
		refused, lost, broken := l.Refused(), l.Cut(), l.Broken()
		require.NoError(t, p.process().Kill())
		l.Served(2 * clients)
		if p.lapses {
			serving(t, r.Proxies, 1)
			l.Served(2 * clients)
		}
		if err := p.start(); err != nil {
			t.Fatalf("restart %s: %v", p.name, err)
		}
		serving(t, r.Proxies, 0)
		l.Served(clients)
		refused, lost, broken = l.Refused()-refused, l.Cut()-lost, l.Broken()-broken
		t.Logf("killed %s: %d connections refused, %d lost, %d streams broken", p.name, refused, lost, broken)
		if p.kind != "proxy" && refused+lost+broken > 0 {
			t.Errorf("the kill of %s failed requests", p.name)
		}
		if p.kind == "proxy" && lost+broken > clients {
			t.Errorf("the kill of %s failed more than the requests in flight through it", p.name)
		}
		if failures := l.Failures(); len(failures) > 0 {
			t.Fatalf("after the kill of %s: %v", p.name, failures)
		}
	}
	l.Finish()
	after := pids(f.Running())
	if len(after) != len(before) {
		t.Errorf("these processes run: %v, want %v", names(f.Running()), before)
	}
	for name, was := range before {
		killed := slices.ContainsFunc(parts, func(p part) bool { return p.name == name })
		if (after[name] == was) == killed {
			t.Errorf("%s had pid %d, has %d; killed: %v", name, was, after[name], killed)
		}
	}
}

// killable lists every process of the topology except the engines, which
// TestChaos kills.
func killable(t *testing.T, f *fleet.Fleet, r *fleet.Running) []part {
	var parts []part
	for i, m := range r.Etcd {
		parts = append(parts, part{
			name: m.Name(), kind: "etcd",
			process: func() *fleet.Process { return r.Etcd[i].Process },
			start: func() (err error) {
				r.Etcd[i], err = f.StartMember(t.Context(), m.Spec)
				return err
			},
		})
	}
	for i, p := range r.Proxies {
		parts = append(parts, part{
			name: p.Name(), kind: "proxy",
			process: func() *fleet.Process { return r.Proxies[i].Process },
			start: func() (err error) {
				r.Proxies[i], err = f.StartProxy(t.Context(), p.Spec)
				return err
			},
		})
	}
	for _, nodes := range [][]*fleet.Node{r.Prefill, r.Decode} {
		for i, n := range nodes {
			parts = append(parts, part{
				name: n.Agent.Name(), kind: "agent", lapses: i == 0, // once for each role, because it takes a TTL
				process: func() *fleet.Process { return n.Agent },
				start:   func() error { return n.StartAgent(t.Context(), n.Spec.Etcd...) },
			})
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.name, b.name) })
	return parts
}

func names(running []*fleet.Process) []string {
	out := make([]string, len(running))
	for i, p := range running {
		out[i] = p.Name()
	}
	return out
}

func pids(running []*fleet.Process) map[string]int {
	out := make(map[string]int)
	for _, p := range running {
		out[p.Name()] = p.PID()
	}
	return out
}

// serving waits until every proxy serves two instances of each role, with the
// given number of orphans among them.
func serving(t *testing.T, proxies []*fleet.Proxy, orphans int) {
	t.Helper()
	for _, p := range proxies {
		testkit.Eventually(t, 2*time.Minute, func() error {
			var page struct {
				PrefillNodes []string `json:"prefill_nodes"`
				DecodeNodes  []string `json:"decode_nodes"`
				Etcd         struct{ Orphans int }
			}
			if err := json.Unmarshal(get(t, p.URL()+"/status"), &page); err != nil {
				return err
			}
			if len(page.PrefillNodes) != 2 || len(page.DecodeNodes) != 2 || page.Etcd.Orphans != orphans {
				return fmt.Errorf("%s: %+v", p.Name(), page)
			}
			return nil
		})
	}
}
