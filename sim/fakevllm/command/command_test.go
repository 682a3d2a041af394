package command

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// TestMain lets the test binary are in for the program.
func TestMain(m *testing.M) {
	if os.Getenv("FAKEVLLM_TEST_MAIN") == "1" {
		cli.Main(Run)
		return
	}
	leak.Main(m)
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		output string
	}{
		{"version", []string{"--version"}, 0, "fakevllm "},
		{"help", []string{"--help"}, 0, "--kv-lease"},
		{"unknown flag", []string{"--gpu"}, 2, "unknown flag"},
		{"argument", []string{"serve"}, 2, `unexpected argument "serve"`},
		{"role", []string{"--port", "0", "--role", "chef"}, 2, `role "chef"`},
		{"empty role", []string{"--port", "0", "--role", ""}, 2, "--role is empty"},
		{"mode", []string{"--port", "0", "--mode", "pigeon"}, 2, `mode "pigeon"`},
		{"port", []string{"--port", "70000"}, 2, "70000 is no port"},
		{"bootstrap port", []string{"--port", "0", "--bootstrap-port", "-1"}, 2, "--bootstrap-port -1 is no port"},
		{"KV events", []string{"--port", "0", "--kv-events-config", `{"endpoint":5557}`}, 2, "--kv-events-config"},
		{"KV events of no cache", []string{"--port", "0", "--kv-events-config", `{"enable_kv_cache_events":true}`}, 2, "without a limited KV cache"},
		{"small cache", []string{"--port", "0", "--num-gpu-blocks-override", "10", "--max-model-len", "1000"}, 2, "too small"},
		{"log level", []string{"--port", "0", "--log-level", "loud"}, 2, "--log-level"},
		{"log format", []string{"--port", "0", "--log-format", "xml"}, 2, "--log-format"},
		{"port in use", []string{"--port", port}, 1, "address already in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := Run(t.Context(), tt.args, &out, &out); code != tt.code || !strings.Contains(out.String(), tt.output) {
				t.Errorf("code %d, not %d: %s", code, tt.code, out.String())
			}
		})
	}
}

// start runs the program as a process and returns what it prints when ready.
func start(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...) //nolint:gosec // ourselves
	cmd.Env = append(os.Environ(), "FAKEVLLM_TEST_MAIN=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(line)
}

func TestSIGTERM(t *testing.T) {
	t.Parallel()
	p, line := start(t, "--port", "0", "--role", "prefill", "--mode", "nixl", "--model", "org/m")
	assert.True(t, strings.HasPrefix(line, "fakevllm: prefill nixl serving org/m on http://127.0.0.1:"),
		"it printed %q", line)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.NoError(t, p.Wait(), "it ended with")
}

// TestMooncakeProcess: the ready line names the bootstrap port, and a leg for the
// other role ends the process, as it ends vLLM.
func TestMooncakeProcess(t *testing.T) {
	t.Parallel()
	p, line := start(t, "--port", "0", "--role", "prefill", "--mode", "mooncake", "--bootstrap-port", "0")
	url, port, ok := strings.Cut(line[strings.Index(line, "http://"):], ", bootstrap port ")
	require.True(t, ok, "it printed %q", line)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for _, at := range []string{"http://127.0.0.1:" + port + "/query", url + "/health"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: tr}).Do(req)
		require.True(t, err == nil && resp.StatusCode == http.StatusOK, "%s: %v, %v", at, resp, err)
		_ = resp.Body.Close()
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions",
		strings.NewReader(`{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if resp, err := (&http.Client{Transport: tr}).Do(req); err == nil {
		_ = resp.Body.Close()
		t.Errorf("the leg was answered with %s", resp.Status)
	}
	if err := p.Wait(); p.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
}
