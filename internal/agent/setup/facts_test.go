package setup

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func mooncakeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mooncake.json")
	testkit.WriteFile(t, path, text)
	return path
}

const (
	nixlProducer = `{"kv_connector":"NixlConnector","kv_role":"kv_producer"}`
	nixlBoth     = `{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"e1"}`
)

// found has the settings that are derived from the facts.
type found struct {
	Key               string
	Engine, Model     string
	Connector, KVRole string
	APIKey            string
	Etcd              string
	TP, DP            int
}

func TestFacts(t *testing.T) {
	t.Parallel()
	v01 := mooncakeFile(t, `{"local_url":"10.0.0.1:13003","remote_url":"10.0.0.2:13003","metadata_server":"10.0.0.9:2379","protocol":"rdma"}`)
	v03 := mooncakeFile(t, `{"local_hostname":"10.0.0.1","metadata_server":"etcd://10.0.0.9:2379,10.0.0.8:2379","protocol":"tcp","master_server_address":"10.0.0.9:50001"}`)
	p2p := mooncakeFile(t, `{"local_hostname":"10.0.0.1","metadata_server":"P2PHANDSHAKE"}`)
	local := "127.0.0.1:2379"
	for _, tc := range []struct {
		name string
		env  map[string]string
		args []string
		want found
	}{
		{
			"all in the command", nil,
			[]string{"--", "vllm", "serve", "Qwen/Q", "--port", "8100", "--served-model-name", "q", "--api-key", "k", "-tp", "2", "-dp", "4", "--kv-transfer-config", nixlProducer},
			found{"prefill/127.0.0.1:8100", "http://127.0.0.1:8100", "q", "nixl", "kv_producer", "k", local, 2, 4},
		},
		{
			"a host that others reach", nil,
			[]string{"--etcd-endpoints=10.0.0.9:2379", "--role=decode", "--", "vllm", "serve", "M", "--host", "10.0.0.7", "--kv-transfer-config", nixlBoth},
			found{"decode/10.0.0.7:8000", "http://10.0.0.7:8000", "M", "nixl", "kv_both", "", "10.0.0.9:2379", 1, 0},
		},
		{
			"the seed's environment, mooncake.json v0.1", map[string]string{"MOONCAKE_CONFIG_PATH": v01, "VLLM_DISTRIBUTED_KV_ROLE": "consumer"},
			[]string{"--", "python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "M", "--port", "8200"},
			found{"decode/10.0.0.2:8200", "http://127.0.0.1:8200", "M", "", "", "", "10.0.0.9:2379", 1, 0},
		},
		{
			"the same in front of the command", nil,
			[]string{"--", "env", "MOONCAKE_CONFIG_PATH=" + v01, "VLLM_DISTRIBUTED_KV_ROLE=producer", "vllm", "serve", "M", "--port", "8100"},
			found{"prefill/10.0.0.1:8100", "http://127.0.0.1:8100", "M", "", "", "", "10.0.0.9:2379", 1, 0},
		},
		{
			"v0.3 by flag, beside an engine", map[string]string{"OPENAI_API_KEY": "o", "VLLM_API_KEY": "not ours"},
			[]string{"--mooncake-config", v03, "--kv-transfer-config", nixlProducer, "--address", "10.0.0.1:8100"},
			found{"prefill/10.0.0.1:8100", "http://10.0.0.1:8100", "", "nixl", "kv_producer", "o", "10.0.0.9:2379,10.0.0.8:2379", 0, 0},
		},
		{
			"flags win", map[string]string{"MOONCAKE_CONFIG_PATH": p2p, "VLLM_DISTRIBUTED_KV_ROLE": "nonsense", "VLLM_API_KEY": "v", "OPENAI_API_KEY": "o"},
			[]string{
				"--role=decode", "--address=10.0.0.5:1", "--engine=http://127.0.0.1:2", "--model=other", "--connector=plain", "--etcd-endpoints=10.0.0.3:2379",
				"--", "vllm", "serve", "M", "--kv-transfer-config", `{"kv_connector":"MoRIIOConnector","kv_role":"kv_producer"}`,
			},
			found{"decode/10.0.0.5:1", "http://127.0.0.1:2", "other", "plain", "kv_producer", "v", "10.0.0.3:2379", 1, 0},
		},
		{
			"VLLM_HOST_IP", map[string]string{"VLLM_HOST_IP": "10.0.0.4", "PD_ROLE": "prefill", "PD_ETCD_ENDPOINTS": "10.0.0.9:2379", "PD_ENGINE_API_KEY": "p"},
			[]string{"--", "vllm", "serve", "M", "--host", "::", "--ssl-certfile", "c", "--api-key", "k"},
			found{"prefill/10.0.0.4:8000", "https://[::1]:8000", "M", "", "", "p", "10.0.0.9:2379", 1, 0},
		},
		{
			"the agent's KV transfer before the command's", nil,
			[]string{"--kv-transfer-config", `{"kv_connector":"AscendStoreConnector","kv_role":"kv_consumer"}`, "--", "vllm", "serve", "M", "--kv-transfer-config", nixlProducer},
			found{"decode/127.0.0.1:8000", "http://127.0.0.1:8000", "M", "plain", "kv_consumer", "", local, 1, 0},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := mustLoad(t, tc.env, append([]string{"--host-id=h"}, tc.args...)...)
			got := found{
				c.Key.String(), c.Engine, c.Model, c.connector, c.Facts.KVRole, c.EngineAPIKey, strings.Join(c.EtcdEndpoints, ","), c.Facts.TPSize, c.Facts.DPSize,
			}
			assert.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestFactsInTheRecord(t *testing.T) {
	t.Parallel()
	path := mooncakeFile(t, `{"local_hostname":"n1","metadata_server":"etcd://127.0.0.1:2379","protocol":"rdma","master_server_address":"m:50001"}`)
	c, err := loadArgs(t, map[string]string{EnvSidePort: "5700"}, "--host-id=h", "--mooncake-config="+path, "--role=decode", "--label=mooncake_host=mine", "--",
		"vllm", "serve", "M", "-tp=8", "-pp=2", "--kv-transfer-config", nixlBoth, "--scheduling-policy=priority")
	require.NoError(t, err)
	rec := c.Record()
	want := instance.Record{
		Connector: "nixl", KVRole: "kv_both", Transfer: "nixl", HostID: "h", Agent: rec.Agent, TPSize: 8, PPSize: 2, EngineIDs: map[string]string{"0": "e1"},
		Ports:  map[string][]int{instance.PortNIXL: {5700}},
		Labels: map[string]string{"mooncake_host": "mine", "mooncake_protocol": "rdma", "mooncake_master": "m:50001", "kv_connector": "NixlConnector", "scheduling_policy": "priority"},
	}
	assert.Empty(t, cmp.Diff(want, rec))
}

// vllm-ascend reads the time for which prefill keeps blocks from an environment variable of vLLM.
func TestLeaseOfAscend(t *testing.T) {
	t.Parallel()
	const timeout = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
	config := func(connector string) []string {
		return []string{"--kv-transfer-config", `{"kv_connector":"` + connector + `","kv_role":"kv_producer"}`}
	}
	for _, tc := range []struct {
		name string
		env  string
		args []string
		want int
	}{
		{"the environment", "60", append([]string{"--", "vllm", "serve", "M"}, config("MooncakeConnectorV1")...), 60},
		{"the command", "60", append([]string{"--", "env", timeout + "=50", "vllm", "serve", "M"}, config("MooncakeConnectorV1")...), 50},
		{"no number", "1m", append([]string{"--", "vllm", "serve", "M"}, config("MooncakeConnectorV1")...), 0},
		{"too long", "9223372036854775807", append([]string{"--", "vllm", "serve", "M"}, config("MooncakeConnectorV1")...), 0},
		{"another connector", "60", append([]string{"--", "vllm", "serve", "M"}, config("NixlConnector")...), 0},
		{"beside an engine", "60", append([]string{"--address=10.0.0.1:8100"}, config("MooncakeConnectorV1")...), 0},
	} {
		c := mustLoad(t, map[string]string{timeout: tc.env}, append([]string{"--host-id=h"}, tc.args...)...)
		if got := c.Record().KVLease; got != tc.want || c.KVLease != 30*time.Second {
			t.Errorf("%s: %d s, want %d; a drain waits for %s", tc.name, got, tc.want, c.KVLease)
		}
	}
}

// vLLM assigns each data-parallel rank its own engine id.
func TestEngineIDsOfRanks(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want map[string]string
	}{
		{[]string{"-dp", "2"}, map[string]string{"0": "e1_dp0", "1": "e1_dp1"}},
		{[]string{"-dp", "100", "-dpn", "70"}, map[string]string{"70": "e1_dp70"}},
		{[]string{"-dp", "4", "-dpl", "2", "-dpr", "2", "-dph"}, map[string]string{"2": "e1_dp2", "3": "e1_dp3"}},
		{[]string{"-dp", "1"}, map[string]string{"0": "e1"}},
	} {
		c := mustLoad(t, nil, append([]string{"--role=decode", "--", "vllm", "serve", "M", "--kv-transfer-config", nixlBoth}, tc.args...)...)
		d := cmp.Diff(tc.want, c.Record().EngineIDs)
		assert.Equal(t, "", d, "%v: %s", tc.args, d)
	}
	_, err := loadArgs(t, nil, "--role=decode", "--", "vllm", "serve", "M", "-dp", "2", "--data-parallel-multi-port-external-lb")
	assert.ErrorContains(t, err, "start a command and an agent for each rank")
}

func TestFactsRefuse(t *testing.T) {
	t.Parallel()
	p2p := mooncakeFile(t, `{"metadata_server":"P2PHANDSHAKE"}`)
	web := mooncakeFile(t, `{"metadata_server":"http://10.0.0.9:8080/metadata"}`)
	broken := mooncakeFile(t, `{"metadata_server": 1}`)
	serve := []string{"--", "vllm", "serve", "M", "--port", "8100"}
	for _, tc := range []struct {
		name string
		env  map[string]string
		args []string
		want []string
	}{
		{"handshake", map[string]string{"MOONCAKE_CONFIG_PATH": p2p}, append([]string{"--role=decode"}, serve...), []string{"MOONCAKE_CONFIG_PATH " + p2p, "is not etcd", "P2PHANDSHAKE", "set --etcd-endpoints, the host:port of the etcd that the proxies use"}},
		{"HTTP metadata server", nil, append([]string{"--role=decode", "--mooncake-config", web}, serve...), []string{"HTTP metadata server", "set --etcd-endpoints"}},
		{"broken file", map[string]string{"MOONCAKE_CONFIG_PATH": broken}, append([]string{"--role=decode"}, serve...), []string{"line 1: metadata_server must be a text", "or set --etcd-endpoints"}},
		{"no such file", nil, append([]string{"--role=decode", "--etcd-endpoints=127.0.0.1:1", "--mooncake-config=/no/such"}, serve...), []string{"--mooncake-config: ", "no such file"}},
		{"no role", nil, serve, []string{"--role: is missing: set --role prefill, --role decode, or --role both"}},
		{"both roles", nil, append(serve, "--kv-transfer-config", nixlBoth), []string{"--kv-transfer-config of the command has kv_both, which leaves it open: set --role prefill, --role decode, or --role both"}},
		{"both by environment", map[string]string{"VLLM_DISTRIBUTED_KV_ROLE": "both"}, serve, []string{"VLLM_DISTRIBUTED_KV_ROLE is both: set --role"}},
		{"role by environment", map[string]string{"VLLM_DISTRIBUTED_KV_ROLE": "prefill"}, serve, []string{`VLLM_DISTRIBUTED_KV_ROLE="prefill": vLLM knows producer, consumer and both`}},
		{"connector", nil, append(serve, "--kv-transfer-config", `{"kv_connector":"MoRIIOConnector","kv_role":"kv_producer"}`), []string{`no dialect for this connector: "MoRIIOConnector"`, "set --connector"}},
		{"connector by flag", nil, append([]string{"--role=decode", "--connector=teleport"}, serve...), []string{`--connector: unknown connector "teleport": known are plain, nixl`}},
		{"KV transfer", nil, append([]string{"--kv-transfer-config", "{"}, serve...), []string{"--kv-transfer-config: unusable"}},
		{"KV transfer of the command", nil, append(serve, "--kv-transfer-config", "nixl"), []string{"--kv-transfer-config of the command", "quote it as one argument"}},
		{"no address", nil, []string{"--role=decode", "--etcd-endpoints=10.0.0.9:2379", "--", "vllm", "serve", "M", "--port", "8100"}, []string{"--address: is missing: the command listens on every address", "host:8100", "VLLM_HOST_IP"}},
		{"no port", nil, []string{"--role=decode", "--", "bash", "-c", "vllm serve M"}, []string{"--address: is missing, and the command does not show the engine's port"}},
		{"loopback host", nil, []string{"--role=decode", "--etcd-endpoints=10.0.0.9:2379", "--", "vllm", "serve", "M", "--host", "127.0.0.1"}, []string{"--address (from the command): 127.0.0.1:8000 is a loopback address"}},
		{"headless", nil, []string{"--role=decode", "--", "vllm", "serve", "M", "--headless"}, []string{"starts no API server"}},
		{"restart", nil, append([]string{"--role=decode", "--restart=always"}, serve...), []string{`--restart: "always": use no or on-failure`}},
		{"restart delays", nil, append([]string{"--role=decode", "--restart-delay=2m"}, serve...), []string{"--restart-delay-max: 1m0s: must be between 2m0s"}},
		{"stop timeout", nil, append([]string{"--role=decode", "--stop-timeout=0s"}, serve...), []string{"--stop-timeout: 0s: must be between 1ms"}},
		{"without a command", nil, []string{"--role=decode", "--address=127.0.0.1:1", "--start-timeout=1m", "--engine-dies-with-agent"}, []string{"--start-timeout: is for an engine that this agent starts, as in pdmesh-agent ... -- vllm serve MODEL", "--engine-dies-with-agent:"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := loadArgs(t, tc.env, tc.args...)
			require.Error(t, err, "accepted: %+v", c)
			testkit.Contains(t, fmt.Sprint(err), tc.want...)
		})
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	c, err := loadArgs(t, map[string]string{"MOONCAKE_CONFIG_PATH": "/no/such"}, "--role=decode", "--etcd-endpoints=127.0.0.1:1", "--",
		"vllm", "serve", "M", "--config", "c.yaml", "--kv-transfer-config", nixlProducer)
	require.NoError(t, err)
	notes := strings.Join(c.Notes, "\n")
	for _, want := range []string{"--config c.yaml is not read by the agent", "the role is decode, but --kv-transfer-config of the command has kv_producer", "MOONCAKE_CONFIG_PATH: unusable"} {
		assert.Contains(t, notes, want)
	}
}

// The role both is never derived: most engines with kv_both are meant for one role.
func TestRole_NeverGuessedBoth(t *testing.T) {
	t.Parallel()
	serve := []string{"--etcd-endpoints=127.0.0.1:1", "--", "vllm", "serve", "M", "--port", "8100", "--kv-transfer-config"}
	config := func(role string) []string {
		return append(slices.Clip(serve), `{"kv_connector":"NixlConnector","kv_role":"`+role+`"}`)
	}
	if _, err := loadArgs(t, nil, config("kv_both")...); err == nil || !errors.Is(err, errNoRole) || !strings.Contains(err.Error(), "--role both") {
		t.Errorf("kv_both alone: %v", err)
	}
	for _, tc := range []struct {
		env    map[string]string
		args   []string
		kvRole string
		note   bool
	}{
		{nil, append([]string{"--role=both"}, config("kv_both")...), "kv_both", false},
		{map[string]string{"PD_ROLE": "both"}, config("kv_both"), "kv_both", false},
		{map[string]string{"PD_ROLE": "both"}, []string{"--address=127.0.0.1:1", "--etcd-endpoints=127.0.0.1:2"}, "kv_both", false},
		{nil, append([]string{"--role=both"}, config("kv_producer")...), "kv_producer", true},
	} {
		c, err := loadArgs(t, tc.env, tc.args...)
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		if c.Key.Role != instance.Both || c.Facts.KVRole != tc.kvRole || strings.Contains(fmt.Sprint(c.Notes), "the role is both, but") != tc.note {
			t.Errorf("%v: role %s, kv_role %s, notes %v", tc.args, c.Key.Role, c.Facts.KVRole, c.Notes)
		}
	}
}
