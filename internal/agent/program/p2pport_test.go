package program

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The port of the P2P tier is read from the same sources as by the engine.
func TestP2PPort(t *testing.T) {
	t.Parallel()
	const with = `{"kv_connector":"OffloadingConnector","kv_role":"kv_producer","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","secondary_tiers":[{"type":"p2p"}]}}`
	ported := strings.Replace(with, `"p2p"`, `"p2p","port":5720`, 1)
	serve := func(config string) []string {
		return []string{"vllm", "serve", "M", "--host", "10.0.0.7", "--kv-transfer-config", config}
	}
	for _, tc := range []struct {
		name string
		args []string
		want string // of --print-config, or of the error
	}{
		{"default", append([]string{"--"}, serve(with)...), "p2p-port: 5710 # default"},
		{"tier", append([]string{"--"}, serve(ported)...), "p2p-port: 5720 # --kv-transfer-config of the command (secondary_tiers)"},
		{"environment of the command", append([]string{"--", "env", "VLLM_P2P_SIDE_CHANNEL_PORT=5730"}, serve(with)...), "p2p-port: 5730 # VLLM_P2P_SIDE_CHANNEL_PORT"},
		{"external load balancer", append([]string{"--"}, append(serve(with), "-dp=4", "--data-parallel-rank=2")...), "p2p-port: 5712 # default"},
		{"hybrid load balancer", append([]string{"--"}, append(serve(ported), "-dp=8", "-dpl=4", "-dpr=4", "-dph")...), "p2p-port: 5724 # --kv-transfer-config"},
		{"flag and rank", append([]string{"--p2p-port=5740", "--"}, append(serve(with), "-dp=4", "--data-parallel-rank=2")...), "p2p-port: 5740"},
		{"no port left", append([]string{"--", "env", "VLLM_P2P_SIDE_CHANNEL_PORT=65534"}, append(serve(with), "-dp=4", "--data-parallel-rank=2")...), `VLLM_P2P_SIDE_CHANNEL_PORT): invalid port "65536"`},
		{"flag", append([]string{"--p2p-port=5740", "--"}, serve(ported)...), "p2p-port: 5740"},
		{"beside an engine", []string{"--role=prefill", "--address=10.0.0.7:8100", "--connector=p2p"}, "p2p-port: 5710 # default"},
		{"by class", []string{"--role=decode", "--address=10.0.0.7:8100", "--connector=NixlPushConnector", "--p2p-port=1"}, "--p2p-port: a P2P port is for"},
		{"no port", []string{"--role=prefill", "--address=10.0.0.7:8100", "--connector=p2p", "--p2p-port=70000"}, `--p2p-port: invalid port "70000"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			run(t.Context(), slices.Concat([]string{"--print-config", "--host-id=h"}, tc.args), &out, &out)
			assert.Contains(t, out.String(), tc.want)
		})
	}
}
