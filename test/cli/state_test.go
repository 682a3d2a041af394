package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Static instances whose engines are killed are shown as such everywhere without a request: by pdctl, the
// proxy's routes, and the health check of a load balancer.
func TestDeadStaticInstance(t *testing.T) {
	t.Parallel()
	needsCurl(t)
	w := newDoctorRig(t, etcdtest.Start(t).Endpoint())
	proxy, err := w.f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", EtcdEndpoints: []string{w.etcd}, Args: []string{"--connector", "nixl"}})
	require.NoError(t, err)
	engines := map[instance.Role]*fleet.Node{}
	for _, role := range instance.Roles() {
		engines[role], err = w.f.StartNode(t.Context(), fleet.NodeSpec{Name: string(role), Role: role, Connector: "nixl", Model: modelName})
		require.NoError(t, err)
		code, out := w.run(fmt.Sprintf("pdctl add %s %s", role, engines[role].Address))
		require.Equal(t, 0, code, out)
	}
	_, port, _ := strings.Cut(proxy.Address, ":")
	prefill, decode := engines[instance.Prefill].Address, engines[instance.Decode].Address
	// shows waits until each line has the expected exit code and output, and logs its output.
	shows := func(when string, lines map[string]struct {
		code int
		text string
	},
	) {
		t.Helper()
		for line, want := range lines {
			var out string
			testkit.Eventually(t, patience, func() error {
				var code int
				if code, out = w.run(line); code != want.code || !strings.Contains(strings.Join(strings.Fields(out), " "), want.text) {
					return fmt.Errorf("%s: exit %d\n%s", line, code, out)
				}
				return nil
			})
			t.Logf("%s\n$ %s\n%s(exit %d)", when, line, out, want.code)
		}
	}
	type lines = map[string]struct {
		code int
		text string
	}
	curl := "curl -s -o - -w ' %{http_code}' http://" + proxy.Address
	states := "curl -s http://" + proxy.Address + `/status | grep -o '"status":"[a-z]*"'`
	counts := "curl -s http://" + proxy.Address + `/status | grep -o '"decode_node_count":[0-9]*'`
	shows("both engines run", lines{
		"pdctl list":                         {0, "decode " + decode + " ready"},
		"pdctl get decode/" + decode:         {0, "state ready"},
		"pdctl status":                       {0, "decode 1 1 ready"},
		"pdctl doctor":                       {0, "Nothing is wrong."},
		curl + "/readyz":                     {0, `"ready":true,`},
		curl + "/health":                     {0, "200"},
		"pdmesh-proxy health --port " + port: {0, "ready, 1 prefill and 1 decode instances"},
		states:                               {0, `"status":"ready" "status":"ready"`},
	})
	require.NoError(t, engines[instance.Prefill].Engine.Kill())
	shows("the prefill engine is dead: decode serves alone", lines{
		"pdctl list":                         {0, "prefill " + prefill + " ejected"},
		"pdctl status":                       {0, "prefill 1 1 ejected"},
		"pdmesh-proxy health --port " + port: {0, "ready, 0 prefill and 1 decode instances"},
	})
	require.NoError(t, engines[instance.Decode].Engine.Kill())
	const nothing = "1 decode instance is registered, but none can be used (1 ejected): nothing is served"
	shows("both are dead", lines{
		"pdctl list":                          {0, "decode " + decode + " ejected"},
		"pdctl list --selector state=ejected": {0, "connection refused"},
		"pdctl get decode/" + decode:          {0, "state ejected reason " + proxy.Address + ": no response: "},
		"pdctl status":                        {1, "error (" + proxy.Address + "): " + nothing},
		"pdctl doctor":                        {5, "error fleet: " + nothing},
		curl + "/readyz":                      {0, `"reason":"` + nothing},
		curl + "/health":                      {0, "503"},
		"pdmesh-proxy health --port " + port:  {1, "not ready: " + nothing},
		states:                                {0, `"status":"ejected" "status":"ejected"`},
		counts:                                {0, `"decode_node_count":1`}, // counted as the reference proxies do
	})
	w.finds("engine", "decode/"+decode, "1 of 1 proxies cannot use it: ejected", "connection refused", "pdctl get decode/"+decode)
	for _, role := range instance.Roles() {
		s := engines[role].Spec
		engines[role], err = w.f.StartNode(t.Context(), s)
		require.NoError(t, err)
	}
	shows("both are back", lines{
		"pdctl list":                         {0, "decode " + decode + " ready"},
		"pdctl status":                       {0, "decode 1 1 ready"},
		"pdctl doctor":                       {0, "Nothing is wrong."},
		"pdmesh-proxy health --port " + port: {0, "ready, 1 prefill and 1 decode instances"},
	})
}
