package setup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const mooncakeProducer = `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","engine_id":"base"}`

func mooncakeServer(address string) string {
	return `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_connector_extra_config":{"bootstrap_server_address":"` + address + `"}}`
}

// The address of the bootstrap server comes from the flag, the
// engine's configuration, its environment, or vLLM's default.
func TestBootstrapFacts(t *testing.T) {
	t.Parallel()
	serve := func(transfer string) []string {
		return []string{"--", "vllm", "serve", "M", "--host", "10.0.0.7", "--kv-transfer-config", transfer}
	}
	port := map[string]string{"VLLM_MOONCAKE_BOOTSTRAP_PORT": "9001"}
	for _, tc := range []struct {
		name  string
		env   map[string]string
		args  []string
		asked string
		port  int
		from  string
	}{
		{"default", nil, serve(mooncakeProducer), "10.0.0.7:8998", 8998, "default"},
		{"environment", port, serve(mooncakeProducer), "10.0.0.7:9001", 9001, "VLLM_MOONCAKE_BOOTSTRAP_PORT"},
		{
			"environment of the command", port,
			[]string{"--", "env", "VLLM_MOONCAKE_BOOTSTRAP_PORT=9002", "vllm", "serve", "M", "--host", "10.0.0.7", "--kv-transfer-config", mooncakeProducer},
			"10.0.0.7:9002", 9002, "VLLM_MOONCAKE_BOOTSTRAP_PORT",
		},
		{"a server of its own", port, serve(mooncakeServer("127.0.0.1:9003")), "127.0.0.1:9003", 9003, "--kv-transfer-config of the command (bootstrap_server_address)"},
		{"flag", port, append([]string{"--bootstrap-port=9004"}, serve(mooncakeServer("10.0.0.7:9003"))...), "10.0.0.7:9004", 9004, "flag --bootstrap-port"},
		{"flag by environment", map[string]string{"PD_BOOTSTRAP_PORT": "9005"}, serve(mooncakeProducer), "10.0.0.7:9005", 9005, "environment PD_BOOTSTRAP_PORT"},
		{"beside an engine", nil, []string{"--role=prefill", "--connector=MooncakeConnector", "--address=10.0.0.7:8100", "--engine=http://127.0.0.1:8100"}, "127.0.0.1:8998", 8998, "default"},
		{"a listener on every address", nil, []string{"--address=10.0.0.7:8000", "--", "vllm", "serve", "M", "--kv-transfer-config", mooncakeProducer}, "127.0.0.1:8998", 8998, "default"},
		{"decode", port, []string{"--role=decode", "--connector=mooncake", "--address=10.0.0.7:8100"}, "", 0, ""},
		{"another connector", port, serve(nixlProducer), "", 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := mustLoad(t, tc.env, append([]string{"--host-id=h", "--etcd-endpoints=10.0.0.9:2379"}, tc.args...)...)
			var ports []int
			if tc.port > 0 {
				ports = []int{tc.port}
			}
			rec := c.Record()
			if d := cmp.Diff(ports, rec.Ports[instance.PortBootstrap]); d != "" || c.Bootstrap != tc.asked || c.values.Sources["bootstrap-port"] != tc.from {
				t.Errorf("asks %q from %q: %s", c.Bootstrap, c.values.Sources["bootstrap-port"], d)
			}
			assert.False(t, tc.asked != "" && rec.EngineIDs != nil, "unexpected engine ids: %v", rec.EngineIDs)
		})
	}
}

func TestBootstrapFactsRefuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{"no port", map[string]string{"VLLM_MOONCAKE_BOOTSTRAP_PORT": "x"}, []string{"--", "vllm", "serve", "M", "--kv-transfer-config", mooncakeProducer}, `--bootstrap-port (from VLLM_MOONCAKE_BOOTSTRAP_PORT): invalid port "x"`},
		{"another machine", nil, []string{"--", "vllm", "serve", "M", "--kv-transfer-config", mooncakeServer("10.0.0.8:9000")}, "bootstrap_server_address 10.0.0.8:9000 is not on the engine's machine"},
		{"no address", nil, []string{"--", "vllm", "serve", "M", "--kv-transfer-config", mooncakeServer("9000")}, `bootstrap_server_address "9000" is not host:port`},
		{"decode", nil, []string{"--role=decode", "--connector=mooncake", "--address=127.0.0.1:1", "--bootstrap-port=1"}, "--bootstrap-port: a bootstrap port is for a prefill engine with MooncakeConnector"},
		{"NIXL", nil, []string{"--role=prefill", "--connector=nixl", "--address=127.0.0.1:1", "--bootstrap-port=1"}, "--bootstrap-port: a bootstrap port is for"},
		{"the wrong role", nil, []string{"--role=decode", "--", "vllm", "serve", "M", "--kv-transfer-config", mooncakeProducer}, "--role: decode, but --kv-transfer-config of the command has kv_producer: a request for the other role ends a Mooncake engine"},
		{"both, and no role", nil, []string{"--", "vllm", "serve", "M", "--kv-transfer-config", strings.Replace(mooncakeProducer, "kv_producer", "kv_both", 1)}, "has kv_both, which leaves it open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := loadArgs(t, tc.env, tc.args...)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}
