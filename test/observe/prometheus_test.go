package observe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// patience limits waits for events that take milliseconds on an idle machine.
const patience = 2 * time.Minute

// prometheus is a running Prometheus server.
type prometheus struct {
	t   *testing.T
	url string
}

// get queries its API.
func (p *prometheus) get(path string, q url.Values, into any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	_, text, err := harness.Send(ctx, http.MethodGet, p.url+"/api/v1/"+path+"?"+q.Encode(), "")
	require.NoError(p.t, err)
	var answer struct {
		Status, Error string
		Warnings      []string
		Data          json.RawMessage
	}
	require.NoError(p.t, json.Unmarshal([]byte(text), &answer))
	require.True(p.t, answer.Status == "success" && len(answer.Warnings) <= 0,
		"%s %v: %s %v", path, q, answer.Error, answer.Warnings)
	require.NoError(p.t, json.Unmarshal(answer.Data, into))
}

// count returns the number of series that a query returns.
func (p *prometheus) count(expr string) int {
	p.t.Helper()
	var data struct{ Result []json.RawMessage }
	p.get("query", url.Values{"query": {expr}}, &data)
	return len(data.Result)
}

// await waits until a query returns a series.
func (p *prometheus) await(expr string) {
	p.t.Helper()
	testkit.Eventually(p.t, patience, func() error {
		if p.count(expr) == 0 {
			return fmt.Errorf("no series for %s", expr)
		}
		return nil
	})
}

// follow starts a Prometheus with our configuration that scrapes the given proxies.
func follow(t *testing.T, f *fleet.Fleet, proxies ...string) *prometheus {
	t.Helper()
	program, dir := tool(t, "prometheus"), t.TempDir()
	config := read(t, deploy("prometheus", "prometheus.yml"))
	for was, is := range map[string]string{
		`["proxy-1:8000", "proxy-2:8000"]`: `["` + strings.Join(proxies, `", "`) + `"]`,
		"scrape_interval: 15s":             "scrape_interval: 500ms", "evaluation_interval: 15s": "evaluation_interval: 500ms",
	} {
		require.Contains(t, config, was)
		config = strings.Replace(config, was, is, 1)
	}
	for name, text := range map[string]string{"prometheus.yml": config, "rules.yml": read(t, deploy("prometheus", "rules.yml"))} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	ports, err := fleet.FreePorts(1)
	require.NoError(t, err)
	p := &prometheus{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}
	_, err = f.Start(t.Context(), fleet.Spec{
		Name: "prometheus", Program: program,
		Args: []string{"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + strings.TrimPrefix(p.url, "http://")},
		Ready: func(ctx context.Context) error {
			resp, _, err := harness.Send(ctx, http.MethodGet, p.url+"/-/ready", "")
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("prometheus: %s", resp.Status)
			}
			return err
		},
	})
	require.NoError(t, err)
	return p
}

// quiet are the panels that are empty for a healthy fleet.
var quiet = map[string]bool{
	"Retries": true, "Lost KV transfers": true, "Certificates": true,
}

// A real Prometheus scrapes a proxy under load with our configuration: every rule is evaluated, no alert with
// severity page fires, and every panel of the dashboard has data.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	tool(t, "prometheus")
	ctx := t.Context()
	f := harness.NewFleet(t, binDir)
	proxy, err := f.StartProxy(ctx, fleet.ProxySpec{Name: "proxy", AdminKey: "k", Args: []string{"--connector", "nixl", "--scrape-interval", "200ms", "--kv-events", "on"}})
	require.NoError(t, err)
	for _, role := range []instance.Role{instance.Prefill, instance.Decode} {
		if _, err := f.StartNode(ctx, fleet.NodeSpec{
			Name: string(role), Role: role, Connector: "nixl", Model: harness.Model, Etcd: proxy.Etcd,
			EngineArgs: []string{"--enable-prompt-tokens-details"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, proxy.WaitFor(ctx, 1, 1))
	p := follow(t, f, proxy.Address)
	client := harness.NewClient(t, "k")
	p.await(`pd_build_info`)
	alone := `{"model":"` + harness.Model + `","prompt":["a","b"],"max_tokens":4}` // several prompts: no prefill
	for range 2 {
		for i := range 20 {
			require.NoError(t, harness.Complete(ctx, client, proxy.URL(), strings.Repeat("the same beginning ", 40)+fmt.Sprint(i%3), 8).Err)
		}
		harness.Post(t, proxy.URL()+"/v1/completions", alone)
		p.await(`count_over_time(pd_requests_total[1m]) > 1`)
	}
	p.await(`sum(rate(pd_inter_token_seconds_count[1m])) > 0`)
	p.await(`sum(rate(pd_stage_seconds_count{stage="handover"}[1m])) > 0`)
	p.await(`sum(rate(pd_forward_decode_only_total[1m])) >= 0`)

	var rules struct {
		Groups []struct {
			Rules []struct {
				Name, Health, LastError, State, Type string
				Labels                               map[string]string
			}
		}
	}
	p.await(`pd:retries:ratio_rate5m or pd:time_to_first_token_seconds:p99_rate5m`) // rules have been evaluated
	p.get("rules", nil, &rules)
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			assert.True(t, r.Health != "err" && r.LastError == "", "rule %s: %s %s", r.Name, r.Health, r.LastError)
			assert.False(t, r.State == "firing" && r.Labels["severity"] == "page", "%s fires for a healthy fleet", r.Name)
		}
	}
	assert.GreaterOrEqual(t, n, 15, "only %d rules", n)
	for _, panel := range loadBoard(t).Panels {
		shown := 0
		for _, q := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$proxy", ".*").Replace(q.Expr)
			assert.NotContains(t, expr, "$", "%s: unreplaced variable in %s", panel.Title, expr)
			shown += p.count(expr)
		}
		assert.False(t, shown == 0 && panel.Type != "row" && !quiet[panel.Title], "panel %q shows nothing", panel.Title)
	}
	assert.Equal(t, 1, p.count(`label_replace(pd_build_info, "found", "$1", "proxy", "(.+:.+)")`), "proxies by label")
}
