package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/apikeys"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// A panic before the answer has begun is a 500. Later it breaks the answer off.
func TestDirectPanic(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(forward.Client){
		"before":      func(forward.Client) {},
		"after Write": func(c forward.Client) { _, _ = io.WriteString(c, "half") },
		"after Flush": func(c forward.Client) { c.Flush() },
		"after WriteHeader": func(c forward.Client) {
			c.WriteHeader(http.StatusOK)
		},
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
			s := httptest.NewServer(httpapi.Direct(d)["/v1/completions"])
			defer s.Close()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			var body []byte
			resp, err := client().Do(req)
			if err == nil {
				body, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if name != "before" {
				if err == nil {
					t.Fatalf("%s, %q", resp.Status, body)
				}
				return
			}
			if err != nil || resp.StatusCode != 500 || !strings.Contains(string(body), `"error"`) || strings.Contains(string(body), "bug") {
				t.Fatalf("%v, %q, %v", resp, body, err)
			}
		})
	}
}

// A client with a wrong key gets an error in the form of its API, with and without the
// router.
func TestKeyErrorsInTheShapeOfTheAPI(t *testing.T) {
	t.Parallel()
	d := deps()
	d.ClientKeys = apikeys.Of("k")
	routed := serve(t, d, true)
	for path, want := range map[string]string{
		"/v1/messages":  `{"type":"error","error":{"type":"AuthenticationError","message":"wrong API key"}}`,
		"/v1/responses": `{"error":{"message":"wrong API key","type":"AuthenticationError","param":null,"code":401}}`,
	} {
		direct := httptest.NewServer(httpapi.Direct(d)[path])
		for _, url := range []string{routed.URL + path, direct.URL} {
			if code, _, body := call(t, http.MethodPost, url, "{}", "Authorization", "Bearer x"); code != http.StatusUnauthorized || body != want {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		direct.Close()
	}
}
