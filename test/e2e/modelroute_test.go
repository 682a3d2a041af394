package e2e_test

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// A model route written by pdctl or the admin route is used at once, listed and counted. It survives a
// restart of the proxy while etcd is down.
func TestModelRoutes(t *testing.T) {
	t.Parallel()
	r := newAdapterRig(t)
	ctx := t.Context()
	etcd, err := r.fleet.StartEtcd(ctx, 1)
	require.NoError(t, err)
	spec := fleet.ProxySpec{Name: "proxy", AdminKey: r.key, EtcdEndpoints: []string{etcd[0].Spec.Client}, Args: []string{"--connector", "nixl", "--state-dir", t.TempDir()}}
	for _, role := range []fakevllm.Role{fakevllm.RolePrefill, fakevllm.RoleDecode} {
		spec.Args = append(spec.Args, "--"+string(role))
		for _, model := range []string{"new", "old"} {
			spec.Args = append(spec.Args, fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.NIXL, Models: []string{model}, Version: "0.32.0"}).Address())
		}
	}
	r.proxy, err = r.fleet.StartProxy(ctx, spec)
	require.NoError(t, err)
	require.NoError(t, r.proxy.WaitFor(ctx, 2, 2))
	at := []string{"--etcd-endpoints", etcd[0].Spec.Client}
	runProgram(t, "pdctl", append(at, "model", "route", "org/chat=75:new,25:old")...)
	r.awaitServed("org/chat")
	const url = "/models/routes/gpt-4o"
	if status, _, text := r.send(http.MethodPut, r.proxy.URL()+url, map[string]any{"targets": []any{map[string]any{"model": "old"}}, "reason": "why"}); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if status, _, text := r.send(http.MethodPut, r.proxy.URL()+"/models/routes/new", map[string]any{"targets": []any{map[string]any{"model": "old"}}}); status != http.StatusBadRequest || !strings.Contains(text, "takes precedence") {
		t.Errorf("%d %s", status, text)
	}
	if status, _, text := r.send(http.MethodGet, r.proxy.URL()+url, nil); status != http.StatusOK || !strings.Contains(text, `"decode":1`) {
		t.Errorf("%d %s", status, text)
	}
	if names := strings.Join(r.names(), " "); names != "new old gpt-4o org/chat" && names != "old new gpt-4o org/chat" {
		t.Errorf("listed: %s", names)
	}
	split := func() {
		t.Helper()
		count := map[string]int{}
		for range 40 {
			count[r.served("org/chat").Get("X-PD-Model")]++
		}
		n := count["new"]
		assert.True(t, n >= 29 && n <= 31 && count["old"] == 40-n, "split %v", count)
		header := r.served("gpt-4o")
		assert.Equal(t, "old", header.Get("X-PD-Model"), header)
	}
	split()
	testkit.Eventually(t, time.Minute, func() error { // a request is counted after its answer
		if line := `pd_model_route_requests_total{route="gpt-4o",target="old"} 1`; !strings.Contains(string(get(t, r.proxy.URL()+"/metrics")), line) {
			return fmt.Errorf("no %s in the metrics", line)
		}
		return nil
	})

	require.NoError(t, r.proxy.Stop(ctx))
	require.NoError(t, etcd[0].Kill())
	_, port, _ := net.SplitHostPort(r.proxy.Address) // the name of the proxy in records
	spec.Name = "again"
	spec.Port, _ = strconv.Atoi(port)
	r.proxy, err = r.fleet.StartProxy(ctx, spec)
	require.NoError(t, err)
	r.awaitServed("gpt-4o")
	split()
}
