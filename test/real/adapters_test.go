package real_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/test/harness"
)

// TestAdapters loads and unloads LoRA adapters while the fleet serves, through the proxy and directly on
// the engines. The prefill instance is static, the decode instance has an agent.
func TestAdapters(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	r.env = []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"}
	r.more = []string{"--max-loras", "2", "--max-cpu-loras", "4"}
	var err error
	r.proxy, err = r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", AdminKey: adminKey, Args: []string{"--connector", r.dialect}})
	require.NoError(t, err)
	engines := map[instance.Role]*engine{}
	for _, role := range instance.Roles() {
		engines[role], err = r.launch(string(role), role)
		require.NoError(t, err)
	}
	r.startAgent(engines[instance.Decode])
	send := func(url, path string, body map[string]any) (int, http.Header, string) {
		t.Helper()
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		resp, answer, err := harness.Send(t.Context(), http.MethodPost, url+path, string(raw), "X-Api-Key", adminKey, "X-Pd-Trace", "1")
		require.NoError(t, err)
		return resp.StatusCode, resp.Header, answer
	}
	must := func(url, path string, body map[string]any) string {
		t.Helper()
		status, _, answer := send(url, path, body)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
		return answer
	}
	must(r.proxy.URL(), "/instances/add", map[string]any{"type": "prefill", "instance": engines[instance.Prefill].address})
	require.NoError(t, r.proxy.WaitFor(t.Context(), 1, 1))
	ask := func(name string) (int, http.Header, string) {
		t.Helper()
		status, header, answer := send(r.proxy.URL(), "/v1/completions", map[string]any{
			"model": name, "prompt": "Each contributor grants to you a license to " + name[:1], "max_tokens": 24, "temperature": 0, "ignore_eos": true,
		})
		var a struct{ Choices []struct{ Text string } }
		if status == http.StatusOK {
			if err := json.Unmarshal([]byte(answer), &a); err != nil || len(a.Choices) != 1 {
				t.Fatalf("%v: %s", err, answer)
			}
			answer = a.Choices[0].Text
		}
		return status, header, answer
	}
	// Names with the same first letter have the same prompt.
	same := func(name string) {
		t.Helper()
		_, _, want := ask(adapted)
		status, header, got := ask(name)
		if status != http.StatusOK || header.Get("X-PD-Decode-Only") != "" || header.Get("X-PD-Prefill") == "" {
			t.Fatalf("%s: %d %v %s", name, status, header, got)
		}
		if got != want {
			t.Errorf("%s: %q, with the adapter loaded at start %q", name, got, want)
		}
	}
	load := map[string]any{"lora_name": "a-late", "lora_path": filepath.Join(lab.dir, "adapter")}
	logf("load through the proxy: %s", must(r.proxy.URL(), "/v1/load_lora_adapter", load))
	same("a-late")
	must(r.proxy.URL(), "/v1/unload_lora_adapter", map[string]any{"lora_name": "a-late"})
	if status, _, answer := ask("a-late"); status != http.StatusNotFound {
		t.Errorf("unloaded: %d %s", status, answer)
	}

	load["lora_name"] = "a-direct"
	for _, e := range engines {
		must(e.url(), "/v1/load_lora_adapter", load)
	}
	same("a-direct")
	must(engines[instance.Decode].url(), "/v1/unload_lora_adapter", map[string]any{"lora_name": "a-direct"})
	for range 5 {
		status, _, answer := ask("a-direct")
		if status != http.StatusNotFound && status != http.StatusServiceUnavailable {
			t.Errorf("unloaded at decode: %d %s", status, answer)
		}
	}
	must(engines[instance.Decode].url(), "/v1/load_lora_adapter", load)
	must(engines[instance.Prefill].url(), "/v1/unload_lora_adapter", map[string]any{"lora_name": "a-direct"})
	r.awaitDecodes(1)
	if status, _, answer := ask(model); status != http.StatusOK {
		t.Errorf("the base model: %d %s", status, answer)
	}
	logf("adapters that were loaded and unloaded at run time were served and refused at once")
}
