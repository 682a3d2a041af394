package program

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The error about a missing role or address suggests command
// lines that work, unless there is another error, too.
func TestMissingRole_SuggestsCommand(t *testing.T) {
	t.Parallel()
	both := `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{
			"in front of an engine",
			[]string{"--etcd-endpoints", "10.0.0.9:2379", "--", "vllm", "serve", "org/m", "--host", "10.0.0.7", "--api-key", "geheim", "--kv-transfer-config", both},
			"\n  pdmesh-agent --role prefill --etcd-endpoints 10.0.0.9:2379 -- vllm serve org/m --host 10.0.0.7 --api-key '********' --kv-transfer-config '" + both + "'\nor\n  pdmesh-agent --role decode --etcd-endpoints 10.0.0.9:2379 -- vllm",
		},
		{"beside one", []string{"--address", "10.0.0.7:8100", "--label", "who=it's me"}, "\n  pdmesh-agent --role prefill --address 10.0.0.7:8100 --label 'who=it'\\''s me'\nor\n"},
		{"nothing", []string{}, "For an engine at 127.0.0.1:8100 that is\n  pdmesh-agent --role prefill --address 127.0.0.1:8100\nor\n  pdmesh-agent --role decode --address 127.0.0.1:8100\nor\n  pdmesh-agent --role both --address 127.0.0.1:8100\n"},
		{"no address", []string{"--role", "decode"}, "that is\n  pdmesh-agent --address 127.0.0.1:8100 --role decode\nSee"},
		{"etcd elsewhere", []string{"--etcd-endpoints", "10.0.0.9:2379", "--role", "decode"}, "that is\n  pdmesh-agent --address 10.0.0.7:8100 --etcd-endpoints 10.0.0.9:2379 --role decode\nSee"},
		{"with another mistake", []string{"--address", "10.0.0.7", "--engine-api-key=geheim"}, "--address: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := program{}.run(t.Context(), tc.args, &out, &errs)
			if code != 2 || !strings.Contains(errs.String(), tc.want) || strings.Contains(errs.String(), "geheim") {
				t.Errorf("exit %d\n%s\nlacks\n%s", code, &errs, tc.want)
			}
			suggested := 0
			for line := range strings.Lines(errs.String()) {
				command, ok := strings.CutPrefix(line, "  pdmesh-agent ")
				if !ok {
					continue
				}
				suggested++
				words, err := exec.CommandContext(t.Context(), "sh", "-c", "for w in --print-config "+strings.TrimSpace(command)+"; do printf '%s\\n' \"$w\"; done").Output()
				require.NoError(t, err)
				var out, errs bytes.Buffer
				if code := (program{}).run(t.Context(), strings.Split(strings.TrimSuffix(string(words), "\n"), "\n"), &out, &errs); code != 0 {
					t.Errorf("%s: exit %d\n%s", line, code, &errs)
				}
			}
			assert.Equal(t, tc.name == "with another mistake", suggested == 0,
				"%d lines suggested\n%s", suggested, &errs)
		})
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", []string{}, "--role: is missing"}, // not nil, for which cobra uses the arguments of the test binary,
		{"unknown flag", []string{"--rol", "prefill"}, "unknown flag: --rol; did you mean --role?"},
		{"file", []string{"--config", "/nowhere/agent.yaml"}, "--config: open /nowhere/agent.yaml"},
		{"argument", []string{"prefill"}, `unknown command "prefill"`},
		{"bad duration", []string{"--ttl", "x"}, `--ttl: bad value "x"`},
		{"prefix", []string{"--role=prefill", "--address=127.0.0.1:1", "--etcd-prefix=/"}, "invalid etcd prefix"},
		{"log level", []string{"--role=prefill", "--address=127.0.0.1:1", "--log-level=loud"}, `unknown log level "loud"`},
		{"log format", []string{"--role=prefill", "--address=127.0.0.1:1", "--log-format=xml"}, `unknown log format "xml"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := run(t.Context(), tc.args, &out, &errs)
			assert.True(t, code == 2 && out.Len() == 0, "exit %d, output %q", code, &out)
			testkit.Contains(t, errs.String(), tc.want, "See pdmesh-agent --help.")
		})
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &errs); code != 0 || !strings.Contains(out.String(), "--drain-timeout") || strings.Contains(out.String(), "short-ttl") {
		t.Errorf("--help: exit %d\n%s%s", code, &out, &errs)
	}
	out.Reset()
	if code := run(t.Context(), []string{"--version"}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "pdmesh-agent 0.") {
		t.Errorf("--version: exit %d\n%s%s", code, &out, &errs)
	}
}

func TestDoesNotLinkTheEtcdServer(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/pdmesh/pdmesh/cmd/agent").CombinedOutput()
	require.NoError(t, err, string(out))
	assert.NotContains(t, string(out), "go.etcd.io/etcd/server")
	assert.Contains(t, string(out), "go.etcd.io/etcd/client/v3")
}

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
