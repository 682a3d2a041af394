package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// Get fetches a page of a proxy, which must answer with 200.
func Get(t testing.TB, url string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	return send(t, req)
}

func send(t testing.TB, req *http.Request) []byte {
	t.Helper()
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %v: %s", req.Method, req.URL, resp.Status, err, b)
	}
	return b
}

// Add calls a proxy's /instances/add and returns its message.
func Add(t testing.TB, url, key, role, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/instances/add",
		bytes.NewReader(fmt.Appendf(nil, `{"type":%q,"instance":%q}`, role, address)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", key)
	var answer struct{ Message string }
	require.NoError(t, json.Unmarshal(send(t, req), &answer))
	return answer.Message
}

// Metric returns the sum of the samples of a metric whose labels contain all of the given texts.
func Metric(t testing.TB, url, name string, labels ...string) float64 {
	t.Helper()
	var sum float64
lines:
	for line := range strings.Lines(string(Get(t, url+"/metrics"))) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):], &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += v
	}
	return sum
}
