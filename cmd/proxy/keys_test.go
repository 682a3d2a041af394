package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Keys of a file have names and rights, and change while the proxy runs. An unusable file changes nothing and
// is reported. No key is ever logged.
func TestKeysFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		testkit.WriteFile(t, path, text)
	}
	write("secret-a team-a priority,trace\nsecret-b team-b\n")
	shared := fakevllm.NewShared()
	start := func(role fakevllm.Role) *fakevllm.Server {
		return fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.Plain, Models: []string{"m"}, Shared: shared})
	}
	prefill, decode := start(fakevllm.RolePrefill), start(fakevllm.RoleDecode)
	p := runProxy(t, "--etcd-endpoints", etcdtest.Start(t).Endpoint(), "--api-keys-file", path, "--api-key", "secret-0",
		"--prefill", prefill.Address(), "--decode", decode.Address())
	hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(key string) (status int, traced bool) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/completions", strings.NewReader(tlsPrompt))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("X-PD-Trace", "1")
		req.Header.Set("X-Vllm-Priority", "3")
		resp, err := hc.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header.Get("X-Pd-Decode") != ""
	}
	eventually := func(key string, status int, traced bool) {
		t.Helper()
		testkit.Eventually(t, tlsPatience, func() error {
			if s, is := ask(key); s != status || is != traced {
				return fmt.Errorf("%s: %d, traced %v", key, s, is)
			}
			return nil
		})
	}
	priority := func() string {
		t.Helper()
		for _, r := range slices.Backward(decode.Requests()) {
			if r.Path == "/v1/completions" { // not a probe
				return r.Header.Get("X-Vllm-Priority")
			}
		}
		return "no request"
	}
	eventually("secret-a", http.StatusOK, true)
	if got := priority(); got != "3" {
		t.Errorf("team-a: priority %q", got)
	}
	for _, key := range []string{"secret-b", "secret-0"} {
		eventually(key, http.StatusOK, false)
		if got := priority(); got != "" {
			t.Errorf("%s: priority %q", key, got)
		}
	}
	eventually("secret-c", http.StatusUnauthorized, false)
	if text, err := p.get(hc, "/metrics"); err != nil || !strings.Contains(text, "\npd_requests_unauthorized_total 1\n") {
		t.Errorf("%v\n%s", err, text)
	}
	write("secret-c team-c trace\nbroken\n")
	findings := func(want bool) {
		t.Helper()
		testkit.Eventually(t, tlsPatience, func() error {
			text, err := p.get(hc, "/metrics")
			if has := strings.Contains(text, "\npd_api_keys_file_rejected 1\n"); err != nil || has != want {
				return fmt.Errorf("%w\n%s", err, text)
			}
			text, err = p.get(hc, "/status")
			if has := strings.Contains(text, "file of API keys cannot be used"); err != nil || has != want {
				return fmt.Errorf("%w\n%s", err, text)
			}
			return nil
		})
	}
	findings(true)
	eventually("secret-a", http.StatusOK, true)
	write("secret-c team-c trace\n")
	eventually("secret-c", http.StatusOK, true)
	eventually("secret-a", http.StatusUnauthorized, false)
	findings(false)
	testkit.Eventually(t, tlsPatience, func() error {
		for _, want := range []string{"key_name=team-a", "key_name=team-b", "key_name=team-c"} {
			if !strings.Contains(p.log.String(), want) {
				return fmt.Errorf("%s is not in the log", want)
			}
		}
		return nil
	})
	if strings.Contains(p.log.String(), "secret") {
		t.Error("a key is in the log")
	}
}

// Admin keys of a file have names, which the audit log has, and rights.
func TestAdminKeysFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	testkit.WriteFile(t, path, "secret-a ann operate\nsecret-b bob read\nsecret-c eve\n")
	etcd := etcdtest.Start(t)
	decode := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: fakevllm.Plain, Models: []string{"m"}, Shared: fakevllm.NewShared()})
	cli := etcd.Client(t)
	members.Put(t, cli, members.Layout(t).Instance(instance.Key{Role: instance.Decode, Address: decode.Address()}), `{"models":["m"]}`)
	p := runProxy(t, "--etcd-endpoints", etcd.Endpoint(), "--admin-api-keys-file", path)
	call := func(method, route, key, body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, p.url+route, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Api-Key", key)
		resp, err := (&http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	cordon := fmt.Sprintf(`{"type":"decode","instance":%q,"reason":"disks"}`, decode.Address())
	for _, c := range []struct {
		method, route, key, body string
		want                     int
	}{
		{"POST", "/instances/cordon", "secret-b", cordon, 403},
		{"POST", "/instances/cordon", "secret-c", cordon, 403},
		{"POST", "/instances/cordon", "secret-d", cordon, 403},
		{"POST", "/instances/cordon", "", cordon, 401},
		{"POST", "/instances/cordon", "secret-a", cordon, 200},
		{"GET", "/log-level", "secret-b", "", 200},
		{"GET", "/log-level", "secret-c", "", 403},
		{"PUT", "/log-level", "secret-b", `{"level":"info"}`, 403},
		{"PUT", "/log-level", "secret-a", `{"level":"info"}`, 200},
		{"POST", "/route", "secret-c", `{"model":"m","prompt":"x"}`, 403},
	} {
		if got := call(c.method, c.route, c.key, c.body); got != c.want {
			t.Errorf("%s %s with %q: %d, want %d", c.method, c.route, c.key, got, c.want)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	events, err := testkit.Ask(ctx, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, http.MethodGet, p.url+"/dashboard/events", "")
	require.NoError(t, err)
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && !strings.Contains(lines.Text(), `"self":{`) {
	}
	if !strings.Contains(lines.Text(), `"admin":true`) {
		t.Errorf("the dashboard offers no changes: %s, %v", lines.Text(), lines.Err())
	}
	log, err := store.New(cli, members.Layout(t), "").Reader.AuditLog(t.Context(), 1)
	if err != nil || len(log) != 1 || log[0].Who != "ann" || log[0].What != "cordon" {
		t.Errorf("%+v, %v", log, err)
	}
	testkit.WriteFile(t, path, "secret-a ann operate\nbroken\n")
	hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	testkit.Eventually(t, tlsPatience, func() error {
		text, err := p.get(hc, "/metrics")
		if err != nil || !strings.Contains(text, "\npd_api_keys_file_rejected 1\n") {
			return fmt.Errorf("the metrics do not show the rejected file: %w", err)
		}
		return nil
	})
	if strings.Contains(p.log.String(), "secret-") {
		t.Errorf("a key is in the log:\n%s", p.log)
	}
}
