package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Two proxies share one prefill engine with LMCache's PD backend, which sends all its notifications to
// one address, that of its agent. Each proxy receives the notifications of its own requests. After a
// lost notification, or one that the other proxy received, a request would time out, fail as
// not_notified and be retried.
func TestLMCacheNotifiesTwoProxies(t *testing.T) {
	t.Parallel()
	f, etcd, list := proxies(t, 2)
	nodes := pair(t, f, fleet.NodeSpec{Connector: "lmcache", Model: model, Etcd: []string{etcd}, EngineArgs: []string{"--strict", "--faults"}})
	for _, p := range list {
		require.NoError(t, p.WaitFor(t.Context(), 1, 1))
	}

	const each, clients = 50, 5
	var work sync.WaitGroup
	for i, p := range list {
		c := newClient(t, adminKey)
		for j := range clients {
			work.Go(func() {
				for n := range each / clients {
					r := complete(t.Context(), c, p.URL(), fmt.Sprintf("proxy %d, client %d, request %d", i, j, n), 5)
					switch alone := r.Header.Get("X-Pd-Decode-Only"); {
					case r.Err != nil:
						t.Error(r.Err)
					case alone != "" || r.Header.Get("X-Pd-Prefill") != nodes[instance.Prefill].Address:
						t.Errorf("prefill %q, alone %q", r.Header.Get("X-Pd-Prefill"), alone)
					}
				}
			})
		}
	}
	work.Wait()

	for _, p := range list {
		if n := metric(t, p.URL(), "pd_forward_retries_total"); n != 0 {
			t.Errorf("%s: %v legs were retried", p.Name(), n)
		}
	}
	prefill, decode := stateOf(t, nodes[instance.Prefill]), stateOf(t, nodes[instance.Decode])
	if n := decode.Counters.TransfersLoaded; n != 2*each || decode.Counters.LocalPrefills != 0 || decode.Counters.WrongKV != 0 {
		t.Errorf("%d of %d prompts came from prefill: %+v, %q", n, 2*each, decode.Counters, decode.Refusals)
	}
	assert.Len(t, prefill.Refusals, 0, "prefill refused")
}

// A prefill engine whose LMCache configuration has a port other than its agent's: each of the first
// three requests waits once, later requests do not. The proxy and pdctl doctor name the instance, its
// agent's port and the remedy.
func TestLMCache_WrongNotificationPort(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t).Endpoint()
	f := newFleet(t)
	p := startProxy(t, f, "proxy", etcd, "--connector", "nixl", "--lmcache-notify-timeout", "500ms")
	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	prefill := startNode(t, f, fleet.NodeSpec{
		Name: "prefill", Role: instance.Prefill, Connector: "lmcache", Model: model, Etcd: []string{etcd}, KVPort: ports[0],
		EngineArgs: []string{"--strict", "--notify", net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1]))},
	})
	startNode(t, f, fleet.NodeSpec{
		Name: "decode", Role: instance.Decode, Connector: "lmcache", Model: model, Etcd: []string{etcd}, EngineArgs: []string{"--strict"},
	})
	require.NoError(t, p.WaitFor(t.Context(), 1, 1))
	c := newClient(t, adminKey)
	send := func() http.Header {
		t.Helper()
		r := complete(t.Context(), c, p.URL(), "tell me of the sea", 5)
		require.NoError(t, r.Err)
		return r.Header
	}
	for i := range 6 {
		attempts := map[bool]string{true: "2", false: "1"}[i < 3] // the first: prefill, without success
		if h := send(); h.Get("X-Pd-Decode-Only") != "not_notified" || h.Get("X-Pd-Attempts") != attempts {
			t.Errorf("request %d: %v", i, h)
		}
	}
	agent := fmt.Sprintf("port %d of the agent on 127.0.0.1 (--lmcache-notify)", ports[0])
	testkit.Eventually(t, soon, func() error {
		if text := string(get(t, p.URL()+"/status")); !strings.Contains(text, agent) {
			return errors.New(text)
		}
		doctor, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		out, _ := exec.CommandContext(doctor, filepath.Join(binDir, "pdctl"), "doctor", "--agents=false", "--etcd-endpoints", etcd).CombinedOutput() // it exits with 5
		text := string(out)
		for _, want := range []string{"prefill/" + prefill.Address, agent, "pd_proxy_host and pd_proxy_port"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%s: doctor says %s", want, text)
			}
		}
		return nil
	})
}
