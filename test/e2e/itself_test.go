package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// vLLM and the proxy have the same default port, so users will add a proxy's own address to it. The
// proxy must not send requests to itself in an endless loop.
func TestProxyIsItsOwnInstance(t *testing.T) {
	t.Parallel()
	address := bareProxy(t, func(own string) []string { return []string{"--prefill", own, "--decode", own, "--model", model} })
	testkit.Eventually(t, soon, func() error {
		if s := string(get(t, "http://"+address+"/status")); strings.Count(s, "is a pdmesh proxy") < 2 {
			return fmt.Errorf("the proxy does not recognize itself: %s", s)
		}
		return nil
	})
	for path, want := range map[string]int{"/v1/models": http.StatusServiceUnavailable, "/v1/completions": http.StatusServiceUnavailable} {
		method, body := http.MethodGet, ""
		if path != "/v1/models" {
			method, body = http.MethodPost, fmt.Sprintf(`{"model":%q,"prompt":"x"}`, model)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}
