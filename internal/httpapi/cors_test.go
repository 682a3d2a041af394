package httpapi_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// recordedAnswer is an answer of vLLM's middleware. test/real compares it with vLLM.
type recordedAnswer struct {
	Name    string
	Options struct {
		Origins, Methods, Headers []string
		Credentials               bool
	}
	Method string
	Header map[string]string
	Status int
	Body   string
	Answer map[string]string
}

func recordedAnswers(t *testing.T) []recordedAnswer {
	t.Helper()
	raw := testkit.ReadFile(t, "testdata/cors.json")
	var list []recordedAnswer
	require.NoError(t, json.Unmarshal(raw, &list))
	return list
}

// corsHeaders returns the CORS headers of an answer.
func corsHeaders(h http.Header) map[string]string {
	out := map[string]string{}
	for name, values := range h {
		if name = strings.ToLower(name); name == "vary" || strings.HasPrefix(name, "access-control-") {
			out[name] = strings.Join(values, ", ")
		}
	}
	return out
}

// Browsers get the same CORS headers as from vLLM, with the additions in docs/reference/routes.md.
func TestCORSAsVLLM(t *testing.T) {
	t.Parallel()
	for _, tc := range recordedAnswers(t) {
		d := deps()
		o := tc.Options
		d.CORS = httpapi.CORS{Origins: o.Origins, Methods: o.Methods, Headers: o.Headers, Credentials: o.Credentials}
		d.ClientKeys = clientKeys("k")
		for _, path := range []string{"/v1/completions", "/v1/nothing", "/health", "/v1/embeddings"} {
			status, header, body := call(t, tc.Method, serve(t, d, false).URL+path, "{}", pairs(tc.Header)...)
			want := maps.Clone(tc.Answer)
			if asked := tc.Status == http.StatusBadRequest || tc.Body == "OK"; asked {
				if status != tc.Status || body != tc.Body || header.Get("Content-Type") != "text/plain; charset=utf-8" {
					t.Errorf("%s, %s: %d %s", tc.Name, path, status, body)
				}
			} else {
				if len(o.Origins) == 0 {
					delete(want, "vary")
				} else if tc.Header["Origin"] != "" {
					want["access-control-expose-headers"] = "Retry-After, X-Request-Id, X-Should-Retry, " +
						"X-Ratelimit-Limit-Requests, X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Requests, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Requests, X-Ratelimit-Reset-Tokens, " +
						"X-PD-Attempts, X-PD-Cached-Tokens, X-PD-Decided, X-PD-Decode, X-PD-Decode-Only, X-PD-Elsewhere, X-PD-Model, X-PD-Model-Fallback, X-PD-Policy, X-PD-Prefill, X-PD-Revision, X-PD-Timing"
				}
			}
			diff := cmp.Diff(want, corsHeaders(header))
			assert.Equal(t, "", diff, "%s, %s (-vLLM +got):\n%s", tc.Name, path, diff)
		}
	}
}

func pairs(m map[string]string) (out []string) {
	for k, v := range m {
		out = append(out, k, v)
	}
	return out
}

// No page can read operators' routes, even if all pages may send requests.
func TestCORS_NotOnOperatorRoutes(t *testing.T) {
	t.Parallel()
	d := deps()
	d.CORS = httpapi.CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
	s := serve(t, d, false)
	for _, path := range []string{"/status", "/metrics", "/readyz", "/instances/add", "/instances/remove", "/reset_prefix_cache"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodOptions} {
			status, header, _ := call(t, method, s.URL+path, "{}", "Origin", "https://a.example", "Access-Control-Request-Method", "POST", "X-Api-Key", "secret")
			if got := corsHeaders(header); len(got) != 0 || method == http.MethodOptions && status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %v", method, path, status, got)
			}
		}
	}
}

// Streams, refusals and errors after a panic have CORS headers.
func TestCORS_OnEveryAnswer(t *testing.T) {
	t.Parallel()
	d := deps()
	d.CORS = httpapi.CORS{Origins: []string{"https://a.example"}, Methods: []string{"*"}, Headers: []string{"*"}}
	d.ClientKeys = clientKeys("k")
	ask := func(key string, answer forward.HandlerFunc) http.Header {
		d.Data.Generate = func(openai.Kind) forward.HandlerFunc { return answer }
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader("{}"))
		r.Header.Set("Origin", "https://a.example")
		r.Header.Set("Authorization", "Bearer "+key)
		httpapi.NewRouter(d, true).ServeHTTP(w, r)
		return w.Result().Header
	}
	stream := func(c forward.Client, _ *http.Request) {
		_, _ = io.WriteString(c, "data: x\n\n")
		c.Flush()
	}
	for name, h := range map[string]http.Header{
		"a stream": ask("k", stream), "no key": ask("", stream), "a wrong key": ask("x", stream),
		"a panic": ask("k", func(forward.Client, *http.Request) { panic("bug") }),
	} {
		assert.Equal(t, "https://a.example", h.Get("Access-Control-Allow-Origin"), name)
		assert.Equal(t, "Origin", h.Get("Vary"), name)
	}
}
