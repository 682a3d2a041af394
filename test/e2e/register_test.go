package e2e_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// gatewayPut writes a key with one POST to etcd's JSON gateway.
func gatewayPut(ctx context.Context, endpoint, key, value string) error {
	body := fmt.Sprintf(`{"key":%q,"value":%q}`, base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte(value)))
	resp, text, err := harness.Send(ctx, http.MethodPost, "http://"+endpoint+"/v3/kv/put", body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// A node needs no agent: a script with curl, or a single put of an empty value, is enough. The proxy
// probes such nodes itself. An invalid value next to them is shown with its reason and has no other
// effect.
func TestSelfRegisteredNodes(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("REQUIRE_CURL") != "" {
			t.Fatal("REQUIRE_CURL is set, but curl is not installed")
		}
		t.Skip("curl is not installed (REQUIRE_CURL=1 makes that a failure)")
	}
	const key = "e2e-admin-key"
	ctx := t.Context()
	f := newFleet(t)
	proxy, err := f.StartProxy(ctx, fleet.ProxySpec{Name: "proxy", AdminKey: key, Args: []string{"--connector", "nixl"}})
	require.NoError(t, err)
	nodes := make(map[instance.Role]*fleet.Node)
	for _, role := range instance.Roles() { // engines without agents
		nodes[role], err = f.StartNode(ctx, fleet.NodeSpec{Name: string(role), Role: role, Connector: "nixl", Model: model})
		require.NoError(t, err)
	}
	script, err := filepath.Abs("../../scripts/register-node.sh")
	require.NoError(t, err)
	prefill, decode := nodes[instance.Prefill], nodes[instance.Decode]
	registration, err := f.Start(ctx, fleet.Spec{
		Name: "script", Program: script, Args: []string{"prefill", prefill.Address, "http://" + proxy.Etcd[0]}, Env: []string{"TTL=5"},
	})
	require.NoError(t, err)
	require.NoError(t, gatewayPut(ctx, proxy.Etcd[0], "/pd/decode/"+decode.Address, ""))
	const broken = "127.0.0.1:9"
	require.NoError(t, gatewayPut(ctx, proxy.Etcd[0], "/pd/decode/"+broken, `{"v":1,"models":`))
	require.NoError(t, proxy.WaitFor(ctx, 1, 1))

	client := newClient(t, key)
	for i := range 4 {
		r := complete(ctx, client, proxy.URL(), fmt.Sprintf("registered by hand %d", i), 10)
		require.NoError(t, r.Err, "request %d", i)
		p, d := r.Header.Get("X-PD-Prefill"), r.Header.Get("X-PD-Decode")
		assert.True(t, p == prefill.Address && d == decode.Address, "request %d was served by %q and %q", i, p, d)
	}

	status, err := proxy.Status(ctx)
	require.NoError(t, err)
	views := make(map[string]instance.Listing)
	for _, l := range status.Instances {
		views[l.Address] = l
	}
	if l := views[broken]; l.View != instance.Rejected || l.Reason == "" {
		t.Errorf("the broken value is listed as %+v, want rejected with a reason", l)
	}
	if l := views[prefill.Address]; l.Static || l.View != "" {
		t.Errorf("the node of the script is listed as %+v, want leased and in service", l)
	}
	if l := views[decode.Address]; !l.Static || l.View != "" {
		t.Errorf("the node of the single put is listed as %+v, want static and in service", l)
	}
	list := runProgram(t, "pdctl", "list", "--etcd-endpoints", proxy.Etcd[0])
	require.True(t, testkit.Contains(t, list, broken, "rejected"))

	// The script unregisters: its node is removed, and with it the last prefill instance.
	stop, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	require.NoError(t, registration.Stop(stop))
	testkit.Eventually(t, time.Minute, func() error {
		s, err := proxy.Status(ctx)
		if err != nil {
			return err
		}
		if len(s.PrefillNodes) != 0 || len(s.DecodeNodes) != 1 {
			return errors.New("the unregistered node is still used")
		}
		return nil
	})
	if r := complete(ctx, client, proxy.URL(), "by the decode instance alone", 10); r.Err != nil {
		t.Errorf("without a prefill instance: %v", r.Err)
	}
}
