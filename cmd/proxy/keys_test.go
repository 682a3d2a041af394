package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Keys of a file have names and rights, and change while the proxy runs; a file that
// cannot be used changes nothing and is reported. No key is ever logged.
func TestKeysFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret-a team-a priority,trace\nsecret-b team-b\n")
	shared := fakevllm.NewShared()
	start := func(role fakevllm.Role) *fakevllm.Server {
		return fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.Plain, Models: []string{"m"}, Shared: shared})
	}
	prefill, decode := start(fakevllm.RolePrefill), start(fakevllm.RoleDecode)
	p := runProxy(t, "--etcd-endpoints", testkit.StartEtcd(t).Endpoint(), "--api-keys-file", path, "--api-key", "secret-0",
		"--prefill", prefill.Address(), "--decode", decode.Address())
	hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(key string) (status int, traced bool) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/completions", strings.NewReader(tlsPrompt))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("X-PD-Trace", "1")
		req.Header.Set("X-Vllm-Priority", "3")
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
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
		list := decode.Requests()
		return list[len(list)-1].Header.Get("X-Vllm-Priority")
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
