package program

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestPrintConfig(t *testing.T) {
	t.Parallel()
	path := mooncakeFile(t, `{"metadata_server":"etcd://127.0.0.1:2999","protocol":"tcp"}`)
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{
		"--mooncake-config", path, "--print-config", "--etcd-username=u", "--etcd-password=topsecret", "--host-id=h", "--",
		"vllm", "serve", "Qwen/Q", "--port=8100", "--api-key", "topsecret", "--kv-transfer-config", nixlProducer,
	}, &out, &errs)
	require.True(t, code == 0 && errs.Len() == 0, "exit %d: %s", code, &errs)
	testkit.Contains(t, out.String(),
		"role: prefill # --kv-transfer-config of the command\n",
		"address: 127.0.0.1:8100 # the command, as etcd is on this machine\n",
		"engine: http://127.0.0.1:8100 # the command\n",
		"model: Qwen/Q # the command\n",
		"connector: nixl # --kv-transfer-config of the command\n",
		"etcd-endpoints: ['127.0.0.1:2999'] # --mooncake-config "+path+" (metadata_server)\n",
		"# engine-api-key: \"********\" # the command\n",
		"# etcd-password: \"********\" # flag --etcd-password\n",
		"# kv_role: kv_producer\n",
		"label: [kv_connector=NixlConnector, mooncake_protocol=tcp]\n",
		"ttl: 15s\n",
		"# command: vllm serve Qwen/Q --port=8100 --api-key ******** --kv-transfer-config "+nixlProducer+"\n")
	assert.NotContains(t, out.String(), "topsecret")
	assert.NotContains(t, out.String(), "short-ttl")
	if t.Failed() {
		t.Logf("\n%s", &out)
	}
}

func TestWrapUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"--role=decode", "--"}, "no command after --"},
		{[]string{"--role=decode", "--", ""}, "is empty"},
		{[]string{"--role=decode", "vllm", "serve"}, `unknown command "vllm"; the command of an engine follows --`},
		{[]string{"--role=decode", "x", "--", "vllm"}, `unknown command "x"`},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), tc.args, &out, &errs)
		assert.True(t, code == 2 && strings.Contains(errs.String(), tc.says), "%q: exit %d, %q", tc.args, code, &errs)
	}
}

func TestEngineEnvironment(t *testing.T) {
	t.Parallel()
	got := engineEnv([]string{"A=1", "NOTIFY_SOCKET=/s", "WATCHDOG_USEC=1", "WATCHDOG_PID=1", "PD_ETCD_PASSWORD=x", "VLLM_API_KEY=k", "odd"})
	assert.Empty(t, cmp.Diff([]string{"A=1", "VLLM_API_KEY=k", "odd"}, got))
}
