package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// A panic before the response has started results in a 500; a later one aborts the
// connection.
func TestPanic(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(forward.Client){
		"before":                  func(forward.Client) {},
		"before anything is sent": func(c forward.Client) { c.WriteHeader(http.StatusOK) },
		"after Write":             func(c forward.Client) { _, _ = io.WriteString(c, "half") },
		"after Flush":             func(c forward.Client) { c.Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := deps()
			d.Data.Generate = func(openai.Kind) forward.HandlerFunc {
				return func(c forward.Client, _ *http.Request) {
					begin(c)
					panic("bug")
				}
			}
			s := httptest.NewServer(httpapi.NewRouter(d, true))
			defer s.Close()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/completions", strings.NewReader("{}"))
			require.NoError(t, err)
			var body []byte
			resp, err := client().Do(req)
			if err == nil {
				body, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if strings.HasPrefix(name, "after") {
				require.Error(t, err, "%+v, %q", resp, body)
				return
			}
			if err != nil || resp.StatusCode != 500 || !strings.Contains(string(body), `"error"`) || strings.Contains(string(body), "bug") {
				t.Fatalf("%v, %q, %v", resp, body, err)
			}
		})
	}
}

// A client with a wrong key gets an error in the format of its API.
func TestKeyErrors_APIFormat(t *testing.T) {
	t.Parallel()
	d := deps()
	d.ClientKeys = clientKeys("k")
	routed := serve(t, d, true)
	for path, want := range map[string]string{
		"/v1/messages":              `{"type":"error","error":{"type":"AuthenticationError","message":"wrong API key"}}`,
		"/v1/messages/count_tokens": `{"type":"error","error":{"type":"AuthenticationError","message":"wrong API key"}}`,
		"/v1/responses":             `{"error":{"message":"wrong API key","type":"AuthenticationError","param":null,"code":401}}`,
	} {
		code, _, body := call(t, http.MethodPost, routed.URL+path, "{}", "Authorization", "Bearer x")
		assert.True(t, code == http.StatusUnauthorized && body == want, "%s: %d %s", path, code, body)
	}
}
