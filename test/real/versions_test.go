package real_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// TestTwoVersions pairs incompatible real engines: prefill of one vLLM release, decode of another. The
// engines reject the KV transfer, and the proxy never makes that pair.
func TestTwoVersions(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	dir, err := runInstall("--older")
	require.NoError(t, err)
	r := newRig(t)
	socket := filepath.Join(t.TempDir(), "older.sock")
	if _, err := r.fleet.Start(t.Context(), zygote("zygote-older", socket, "PYTHONPATH="+dir)); err != nil {
		t.Fatal(err)
	}
	decode, err := r.launch("decode", instance.Decode)
	require.NoError(t, err)
	r.env = []string{"PD_TEST_LAB_ZYGOTE=" + socket, "PYTHONPATH=" + dir}
	prefill, err := r.launch("prefill", instance.Prefill)
	require.NoError(t, err)
	versions := map[string]string{}
	for _, e := range []*engine{prefill, decode} {
		var v struct{ Version string }
		require.NoError(t, r.get(t.Context(), e.url()+"/version", &v))
		versions[e.name] = v.Version
	}
	logf("prefill is vLLM %s, decode %s", versions["prefill"], versions["decode"])
	if versions["prefill"] == versions["decode"] {
		t.Fatal("only one version is installed")
	}
	// This runs before the proxy knows the engines, because the proxy would probe an engine's health.
	t.Run("engines", func(t *testing.T) { r.wrongPair(t, prefill, decode) })
	t.Run("truncation", func(t *testing.T) {
		assert.Equal(t, []int{2047, 2024}, r.truncated(t, prefill), versions["prefill"])
		assert.Equal(t, []int{2047, 2047}, r.truncated(t, decode), versions["decode"])
	})

	r.proxy, err = r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy"})
	require.NoError(t, err)
	r.startAgent(prefill)
	r.startAgent(decode)
	require.NoError(t, r.proxy.WaitFor(t.Context(), 1, 1))
	t.Run("fallback", func(t *testing.T) {
		const name = "vllm:prompt_tokens_by_source_total"
		transferred := r.metric(decode, name, `source="external_kv_transfer"`)
		prompts := r.metric(prefill, "vllm:prompt_tokens_total", "")
		body := `{"model":"tiny","temperature":0,"max_tokens":24,"prompt":"` + long("Mixed:") + `"}`
		a, err := r.send(r.proxy.URL(), request{method: http.MethodPost, path: "/v1/completions", contentType: "application/json", body: body})
		require.NoError(t, err)
		raw, err := json.Marshal(a)
		if err != nil || !strings.Contains(string(raw), "version_mismatch") {
			t.Errorf("%v: %s", err, raw)
		}
		if n := r.metric(decode, name, `source="external_kv_transfer"`); n != transferred {
			t.Errorf("decode received %v tokens", n-transferred)
		}
		if n := r.metric(prefill, "vllm:prompt_tokens_total", ""); n != prompts {
			t.Errorf("prefill computed %v prompt tokens, want none", n-prompts)
		}
	})
	t.Run("no fallback", func(t *testing.T) {
		strict, err := r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "strict", EtcdEndpoints: r.proxy.Etcd, Args: []string{"--fallback", "none"}})
		require.NoError(t, err)
		require.NoError(t, strict.WaitFor(t.Context(), 1, 1))
		status, body, err := r.callAt(strict.URL(), http.MethodPost, "/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":4}`)
		logf("without a fallback: %d %s", status, body)
		if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(body), "of one vLLM version") {
			t.Errorf("%d, %v: %s", status, err, body)
		}
	})
	t.Run("version groups off", func(t *testing.T) {
		loose, err := r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "loose", EtcdEndpoints: r.proxy.Etcd, Args: []string{"--version-groups", "off"}})
		require.NoError(t, err)
		require.NoError(t, loose.WaitFor(t.Context(), 1, 1))
		body := `{"model":"tiny","temperature":0,"max_tokens":4,"prompt":"` + long("Loose:") + `"}`
		a, err := r.send(loose.URL(), request{method: http.MethodPost, path: "/v1/completions", contentType: "application/json", body: body})
		require.NoError(t, err)
		// The KV transfers fail, and then decode computes the prompt.
		raw, err := json.Marshal(a)
		logf("with --version-groups off: %s", raw)
		if err != nil || !strings.Contains(string(raw), "transfer_lost") {
			t.Errorf("%v: %s", err, raw)
		}
	})
}

// truncated returns to how many tokens an engine with a context of 2048 truncates a longer prompt if the answer
// may have 1 and 24 tokens.
func (r *rig) truncated(t *testing.T, e *engine) (tokens []int) {
	t.Helper()
	for _, most := range []int{1, 24} {
		status, body, err := r.callAt(e.url(), http.MethodPost, "/v1/completions",
			fmt.Sprintf(`{"model":"tiny","truncate_prompt_tokens":-1,"max_tokens":%d,"prompt":%q}`, most, strings.Repeat(long("Long:"), 6)))
		var a struct {
			Usage struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		if err != nil || status != http.StatusOK || json.Unmarshal(body, &a) != nil {
			t.Fatalf("%d, %v: %s", status, err, body)
		}
		tokens = append(tokens, a.Usage.Prompt)
	}
	return tokens
}

// wrongPair transfers a prompt from one engine to the other without a proxy.
func (r *rig) wrongPair(t *testing.T, prefill, decode *engine) {
	t.Helper()
	ask := `{"model":"tiny","temperature":0,"prompt":"` + long("Wrong:") + `",`
	status, body, err := r.callAt(prefill.url(), http.MethodPost, "/v1/completions",
		ask+`"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`)
	var transferred struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &transferred) != nil || len(transferred.KV) < 10 {
		t.Fatalf("%d, %v: %s", status, err, body)
	}
	status, body, err = r.callAt(decode.url(), http.MethodPost, "/v1/completions", ask+`"max_tokens":4,"kv_transfer_params":`+string(transferred.KV)+`}`)
	logf("decode's answer to transfer params of another version: %d, %v: %s", status, err, body)
	if err != nil || status != http.StatusInternalServerError {
		t.Errorf("%d, %v: %s", status, err, body)
	}
	const hash = "compatibility hash mismatch"
	log := decode.LogTail(400)
	if !strings.Contains(log, hash) {
		t.Errorf("decode's log does not report the incompatibility:\n%s", log)
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, hash) {
			logf("decode logs: %s", strings.TrimSpace(line))
			break
		}
	}
}
