package vllmargs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	nixl := vllmargs.Transfer{Connector: "NixlConnector", KVRole: "kv_both", EngineID: "e1"}
	for _, tc := range []struct {
		name string
		argv []string
		want vllmargs.Command
	}{
		{
			"vllm serve", []string{
				"vllm", "serve", "Qwen/Qwen2.5-7B-Instruct", "--host", "10.0.0.7", "--port", "8100", "--served-model-name", "qwen", "q",
				"--api-key", "k1", "k2", "-tp", "4", "--data-parallel-size=2", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"e1"}`,
				"--enforce-eager",
			},
			vllmargs.Command{
				VLLM: true, Host: "10.0.0.7", Port: 8100, Model: "Qwen/Qwen2.5-7B-Instruct", Served: []string{"qwen", "q"}, APIKey: "k1",
				TensorParallel: 4, PipelineParallel: 1, DataParallel: 2, Ranks: vllmargs.Ranks{Total: 2, Local: 2}, Transfer: nixl,
			},
		},
		{
			"the module", []string{"python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "M", "--tensor_parallel_size=2", "--ssl-certfile", "c.pem"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 2, PipelineParallel: 1, TLS: true},
		},
		{
			"the fields one by one", []string{
				"/opt/venv/bin/vllm", "serve", "M", "--kv_transfer_config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both",
				"--kv-transfer-config.engine_id", "e1",
			},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, Transfer: nixl},
		},
		{
			"the last one wins", []string{"vllm", "serve", "M", "--port", "1", "--port=8200", "--model", "N"},
			vllmargs.Command{VLLM: true, Port: 8200, Model: "N", TensorParallel: 1, PipelineParallel: 1},
		},
		{
			"scheduling", []string{"vllm", "serve", "M", "--scheduling-policy", "priority"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, Scheduling: "priority"},
		},
		{
			"started by others", []string{"nice", "-n", "5", "numactl", "--cpunodebind=0", "vllm", "serve", "M", "--port", "8100", "--gpu-memory-utilization", "0.9"},
			vllmargs.Command{VLLM: true, Port: 8100, Model: "M", TensorParallel: 1, PipelineParallel: 1},
		},
		{
			"environment in front", []string{"env", "VLLM_DISTRIBUTED_KV_ROLE=producer", "A=", "vllm", "serve", "M"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, Env: map[string]string{"VLLM_DISTRIBUTED_KV_ROLE": "producer", "A": ""}},
		},
		{
			"a rank with an address of its own", []string{"vllm", "serve", "M", "-dp", "8", "-dpn", "3"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, DataParallel: 1, Ranks: vllmargs.Ranks{Total: 8, First: 3, Local: 1}},
		},
		{
			"a node of several", []string{"vllm", "serve", "M", "-dp=8", "-dpl=4", "--data-parallel-hybrid-lb", "--config", "c.yaml"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", DataParallel: 4, Ranks: vllmargs.Ranks{Total: 8, Local: 4}, ConfigFile: "c.yaml"},
		},
		{
			"the second node", []string{"vllm", "serve", "M", "-dp=8", "-dpl=4", "-dpr", "4", "-dph"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, DataParallel: 4, Ranks: vllmargs.Ranks{Total: 8, First: 4, Local: 4}},
		},
		{
			"the head of several nodes", []string{"vllm", "serve", "M", "-dp=8", "-dpl=2"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, DataParallel: 8, Ranks: vllmargs.Ranks{Total: 8, Local: 2}},
		},
		{
			"a head without ranks", []string{"vllm", "serve", "M", "-dp=8", "-dpl=0"},
			vllmargs.Command{VLLM: true, Port: 8000, Model: "M", TensorParallel: 1, PipelineParallel: 1, DataParallel: 8, Ranks: vllmargs.Ranks{Total: 8}},
		},
		{
			"not vLLM", []string{"/srv/engine", "positional", "--port=9000", "--model", "M"},
			vllmargs.Command{Port: 9000, Model: "M"},
		},
		{"a shell is not parsed", []string{"bash", "-c", "vllm serve M --port 8100"}, vllmargs.Command{}},
		{"negative numbers are values", []string{"vllm", "serve", "M", "--seed", "-1", "--port", "8100"}, vllmargs.Command{VLLM: true, Port: 8100, Model: "M", TensorParallel: 1, PipelineParallel: 1}},
		{"nothing", nil, vllmargs.Command{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := vllmargs.ParseCommand(tc.argv)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(vllmargs.Transfer{})))
		})
	}
}

// Fields given one by one become JSON that replaces the whole
// option, as in vLLM 0.32 (utils/argparse_utils.py).
func TestFields(t *testing.T) {
	t.Parallel()
	const (
		transfer, extra, events = "--kv-transfer-config", "--kv-transfer-config.kv_connector_extra_config", "--kv-events-config"
		nixl                    = `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`
	)
	for _, tc := range []struct {
		name           string
		fields         []string
		option, equals string
	}{
		{"a P2P tier", []string{
			"--kv_transfer_config.kv_connector=OffloadingConnector", transfer + ".kv_role", "kv_producer", extra + ".spec_name", "TieringOffloadingSpec",
			extra + ".secondary_tiers", `[{"type":"fs","root_dir":"/x"}]`, extra + ".secondary_tiers", `[{"type":"p2p","port":"5720","unbound_store_timeout_s":90}]`,
		}, transfer, p2pTier("OffloadingConnector")},
		{"connectors", []string{transfer + ".kv_connector", "MultiConnector", transfer + ".kv_role=kv_both", extra + ".connectors", "[" + nixl + "]", extra + ".connectors=[" + p2pTier("OffloadingConnector") + "]"},
			transfer, `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[` + nixl + "," + p2pTier("OffloadingConnector") + `]}}`},
		{"an object and a field of it", []string{transfer + ".kv_connector", "NixlConnector", extra, `{"kv_lease_duration":6,"x":1}`, extra + ".bootstrap_server_address=10.0.0.1:9000"},
			transfer, `{"kv_connector":"NixlConnector","kv_connector_extra_config":{"kv_lease_duration":6,"bootstrap_server_address":"10.0.0.1:9000"}}`},
		{"the last value wins", []string{extra + ".kv_lease_duration", "6", extra + `={"kv_lease_duration":"7"}`}, transfer, `{"kv_connector_extra_config":{"kv_lease_duration":7}}`},
		{"ranks", []string{transfer + ".kv_connector=MooncakeConnector", transfer + ".kv_rank", "0", transfer + ".kv_parallel_size", "2"},
			transfer, `{"kv_connector":"MooncakeConnector","kv_rank":0,"kv_parallel_size":2}`},
		{"the option before", []string{transfer, nixl, extra + ".kv_lease_duration", "10"}, transfer, `{"kv_connector_extra_config":{"kv_lease_duration":10}}`},
		{"the option after", []string{transfer + ".kv_role", "kv_both", transfer + "=" + nixl}, transfer, `{"kv_role":"kv_both"}`},
		{"text in a list", []string{extra + ".x+", "a,b", transfer + ".kv_connector=NixlConnector", extra + ".x+=c"}, transfer, `{"kv_connector":"NixlConnector"}`},
		{"a flag instead of a value", []string{transfer + ".kv_connector=NixlConnector", transfer + ".x", "--port", "8000"}, transfer, `{"kv_connector":"NixlConnector"}`},
		{"KV events", []string{events + ".enable_kv_cache_events", "True", events + ".endpoint=tcp://*:7000", events + ".topic", "kv"},
			events, `{"enable_kv_cache_events":true,"endpoint":"tcp://*:7000","topic":"kv"}`},
		{"KV events that are off", []string{events + ".enable_kv_cache_events", "0"}, events, `{}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := vllmargs.ParseCommand(append([]string{"vllm", "serve", "M"}, tc.fields...))
			require.NoError(t, err)
			want, err := vllmargs.ParseCommand([]string{"vllm", "serve", "M", tc.option, tc.equals})
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(want, got, cmp.AllowUnexported(vllmargs.Transfer{})))
		})
	}
}

func TestBadCommands(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		argv []string
		says string
	}{
		{"headless", []string{"vllm", "serve", "M", "--headless"}, "starts no API server"},
		{"unix socket", []string{"vllm", "serve", "M", "--uds", "/run/v.sock"}, "add --port to the command"},
		{"port", []string{"vllm", "serve", "M", "--port", "http"}, `--port "http" of the command is not a number`},
		{"port zero", []string{"vllm", "serve", "M", "--port=0"}, "from 1 to 65535"},
		{"tensor parallel", []string{"vllm", "serve", "M", "-tp", "x"}, "--tensor-parallel-size"},
		{"transfer", []string{"vllm", "serve", "M", "--kv-transfer-config", "{"}, "--kv-transfer-config of the command"},
		{"transfer without a value", []string{"vllm", "serve", "M", "--kv-transfer-config", "--port", "1"}, "quote it as one argument"},
		{"transfer by fields", []string{"vllm", "serve", "M", "--kv-transfer-config.kv_role", "x"}, `kv_role "x"`},
		{"a list by fields", []string{"vllm", "serve", "M", "--kv-transfer-config.kv_connector+=NixlConnector"}, "kv_connector must not be a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := vllmargs.ParseCommand(tc.argv)
			assert.True(t, err != nil && strings.Contains(err.Error(), tc.says), "%+v, %v", got, err)
			assert.False(t, !errors.Is(err, vllmargs.ErrCommand) && !errors.Is(err, vllmargs.ErrTransfer), "%v", err)
		})
	}
}

func TestMasked(t *testing.T) {
	t.Parallel()
	got := strings.Join(vllmargs.Masked([]string{
		"env", "HF_TOKEN=topsecret", "VLLM_API_KEY=topsecret", "vllm", "serve", "M", "--api-key", "topsecret", "topsecret", "--port", "1",
		"--api_key=topsecret", "--max-num-batched-tokens", "8192", "a\x1bb",
	}), " ")
	want := `env HF_TOKEN=******** VLLM_API_KEY=******** vllm serve M --api-key ******** ******** --port 1 --api_key=******** --max-num-batched-tokens 8192 a\u001bb`
	assert.Equal(t, want, got)
}
