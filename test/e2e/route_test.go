package e2e_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/explain"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// pdctl route queries a proxy for the route of a request: the proxy given by a flag, or the first in
// etcd, which it names. The actual request then takes that route.
func TestRouteIsExplained(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	engine := func(role fakevllm.Role) string {
		return fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.NIXL, Models: []string{model}, Version: "0.32.0"}).Address()
	}
	proxy, err := f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", AdminKey: adminKey, Args: []string{
		"--connector", "nixl", "--disaggregate", "auto", "--prefill", engine(fakevllm.RolePrefill), engine(fakevllm.RolePrefill), "--decode", engine(fakevllm.RoleDecode),
	}})
	require.NoError(t, err)
	require.NoError(t, proxy.WaitFor(t.Context(), 2, 1))
	body := filepath.Join(t.TempDir(), "body.json")
	text := `{"model":"` + model + `","prompt":"` + strings.Repeat("the sea ", 60) + `","max_tokens":2}`
	require.NoError(t, os.WriteFile(body, []byte(text), 0o600))
	run := func(args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "pdctl"), append([]string{"route", "--explain", body, "--endpoint", "/v1/completions"}, args...)...)
		cmd.Env = append(os.Environ(), "ADMIN_API_KEY="+adminKey)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, errs.String())
		}
		return out.String(), errs.String()
	}
	out, errs := run("--etcd-endpoints", proxy.Etcd[0], "-o", "json")
	var p explain.Plan
	require.NoError(t, json.Unmarshal([]byte(out), &p), out)
	require.Contains(t, errs, "asked: "+proxy.URL())
	if p.Way != explain.Pair || p.Prefill.Policy != "prefix" || len(p.Prefill.Candidates) != 2 || len(p.Prefill.Candidates[0].Scores) == 0 || p.Disaggregate.Reason != "learning" {
		t.Errorf("%s", out)
	}
	shown, errs := run("--proxy", proxy.URL())
	assert.Equal(t, "", errs)
	require.True(t, testkit.Contains(t, shown, "way       pair", p.Prefill.Chosen+" by prefix", "uncached=", "learning", "revision"))
	n := metric(t, proxy.URL(), "pd_picks_total") + metric(t, proxy.URL(), "pd_requests_total")
	assert.True(t, n == 0, "queries count as %v picks and requests", n)
	if resp, _ := posted(t, proxy.URL()+"/v1/completions", "", text); resp.Header.Get("X-PD-Prefill") != "" {
		t.Errorf("a request without the trace header gets trace headers: %v", resp.Header)
	}
	out, _ = run("--proxy", proxy.URL(), "-o", "json")
	var again explain.Plan
	if err := json.Unmarshal([]byte(out), &again); err != nil || again.Prefill.Chosen != p.Prefill.Chosen || again.Prefill.Cached == 0 {
		t.Errorf("explained %s, then %s with %d tokens cached", p.Prefill.Chosen, again.Prefill.Chosen, again.Prefill.Cached)
	}
	// Without the key, and with a wrong one, no route is returned.
	for key, says := range map[string]string{"": "no admin key", "wrong": "Invalid API Key"} {
		resp, answer, err := harness.Send(t.Context(), http.MethodPost, proxy.URL()+"/route?endpoint=/v1/completions", text, "X-Api-Key", key)
		require.NoError(t, err)
		assert.True(t, resp.StatusCode/100 == 4 && strings.Contains(answer, says),
			"key %q: %s %s", key, resp.Status, answer)
	}
}
