package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Get fetches a page of a proxy, which must answer with 200.
func Get(t testing.TB, url string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return mustSend(ctx, t, http.MethodGet, url, "")
}

// Send sends a request with headers, given as names and values, and a JSON body, or none for "". It uses a
// new connection, and returns the response after reading its body.
func Send(ctx context.Context, method, url, body string, header ...string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// Post sends a JSON body to a page, which must answer with 200, and returns the answer.
func Post(t testing.TB, url, body string, header ...string) []byte {
	t.Helper()
	return mustSend(t.Context(), t, http.MethodPost, url, body, header...)
}

func mustSend(ctx context.Context, t testing.TB, method, url, body string, header ...string) []byte {
	t.Helper()
	resp, text, err := Send(ctx, method, url, body, header...) //nolint:bodyclose // Send has closed it
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s %s: %s: %s", method, url, resp.Status, text)
	return []byte(text)
}

// Add calls a proxy's /instances/add and returns its message.
func Add(t testing.TB, url, key, role, address string) string {
	t.Helper()
	var answer struct{ Message string }
	text := Post(t, url+"/instances/add", fmt.Sprintf(`{"type":%q,"instance":%q}`, role, address), "X-Api-Key", key)
	require.NoError(t, json.Unmarshal(text, &answer))
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
