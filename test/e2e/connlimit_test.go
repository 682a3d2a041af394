package e2e_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// With all connections in use, a further client gets 503 and its connection is closed, health checks
// and admin requests are answered, and existing connections stay open.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}})
	address, _ := startBareProxy(t, func(string) []string {
		return []string{"--decode", engine.Address(), "--max-connections", "2"}
	})
	awaitServing(t, address)
	var connected []*peer
	for len(connected) < 2 {
		// Earlier connections of this test may not be closed at the proxy yet.
		c := dialPeer(t, address)
		if status, closes, err := c.get(http.MethodPost, "/v1/completions", oneToken); err == nil && status == http.StatusOK && !closes {
			connected = append(connected, c)
		} else {
			_ = c.Close()
		}
	}
	for _, path := range []string{"/health", "/livez", "/readyz", "/metrics", "/status"} {
		if status, closes, err := dialPeer(t, address).get(http.MethodGet, path, ""); status != http.StatusOK || !closes || err != nil {
			t.Errorf("%s at the limit: %d, closes %t, %v", path, status, closes, err)
		}
	}
	for range 20 {
		resp, err := dialPeer(t, address).send(http.MethodPost, "/v1/completions", oneToken)
		require.NoError(t, err)
		var e struct{ Error struct{ Code int } }
		err = json.NewDecoder(resp.Body).Decode(&e)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !resp.Close || err != nil || e.Error.Code != resp.StatusCode {
			t.Fatalf("at the limit: %s %v, closes %t, %v", resp.Status, resp.Header, resp.Close, err)
		}
	}
	for i, c := range connected {
		if status, closes, err := c.get(http.MethodPost, "/v1/completions", oneToken); status != http.StatusOK || closes || err != nil {
			t.Errorf("connection %d: %d, closes %t, %v", i, status, closes, err)
		}
	}
}
