package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// vLLM and the proxy have the same default port, so users will add a proxy's own address to it. The
// proxy must not send requests to itself in an endless loop.
func TestProxy_AddedAsInstance(t *testing.T) {
	t.Parallel()
	address := bareProxy(t, func(own string) []string { return []string{"--prefill", own, "--decode", own, "--model", model} })
	testkit.Eventually(t, soon, func() error {
		if s := string(get(t, "http://"+address+"/status")); strings.Count(s, "is a pdmesh proxy") < 2 {
			return fmt.Errorf("the proxy does not recognize itself: %s", s)
		}
		return nil
	})
	for path, body := range map[string]string{"/v1/models": "", "/v1/completions": fmt.Sprintf(`{"model":%q,"prompt":"x"}`, model)} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		resp, text, err := harness.Send(t.Context(), method, "http://"+address+path, body)
		require.NoError(t, err)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "%s: %s %s", path, resp.Status, text)
	}
}
