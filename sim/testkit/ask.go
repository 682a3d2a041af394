package testkit

import (
	"context"
	"net/http"
	"strings"
)

// Ask sends a request with a JSON body, or none for "", and returns the answer, whose body
// the caller closes.
func Ask(ctx context.Context, client *http.Client, method, url, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return client.Do(req)
}
