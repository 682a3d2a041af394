package forward_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/routes"
)

const adminKey = "operator"

func idle(instance.Key) int64 { return 0 }

// router starts the router with the operator's routes over the rig's handlers.
func (r *rig) router(t *testing.T) (url string) {
	t.Helper()
	d := r.deps
	admin, err := apikeys.OpenAdmin(adminKey, "", nil, nil)
	require.NoError(t, err)
	d.AdminKey, d.Members, d.InFlight, d.Opinion = admin, &r.members, idle, func(instance.Key) instance.Opinion { return instance.Opinion{} }
	d.NotServing = func() string { return "" }
	d.Etcd = func() httpapi.EtcdStatus { return httpapi.EtcdStatus{State: "live"} }
	d.Ready = func() error { return nil }
	d.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the proxy's metrics") })
	d.Version = "the proxy's"
	s := httptest.NewServer(httpapi.NewRouter(d, false))
	t.Cleanup(s.Close)
	return s.URL
}

// generating returns a body for a route that goes through prefill and decode.
func generating(path string) string {
	switch path {
	case "/v1/completions":
		return `{"model":"m","prompt":"a b c","max_tokens":4}`
	case "/v1/responses":
		return `{"model":"m","input":"a b c","max_output_tokens":4}`
	case "/inference/v1/generate":
		return `{"model":"m","token_ids":[1,2,3],"sampling_params":{"max_tokens":4}}`
	}
	return `{"model":"m","messages":[{"role":"user","content":"a b c"}],"max_tokens":4}`
}

const passedBody = `{"model":"m", "a field" :[1.50],"kv_transfer_params":{"remote_host":"x"}}`

// received returns the bodies of the requests that an engine got on a route.
func received(s *fakevllm.Server, method, path string) (bodies []string) {
	for _, q := range s.Requests() {
		if q.Method == method && q.Path == path {
			bodies = append(bodies, string(q.Body))
		}
	}
	return bodies
}

// The proxy handles each route as its row in docs/reference/routes.md documents.
func TestEveryRouteOfVLLM(t *testing.T) {
	t.Parallel()
	r := startTuned(t, fakevllm.NIXL, 2, 2, tuning{sched: noProbes}) // engines must not get GET /health
	whole := r.router(t)
	rows, own, err := routes.Table("../../docs/reference/routes.md")
	require.True(t, err == nil && len(rows) >= 80 && len(own) != 0, "%d rows, %d own, %v", len(rows), len(own), err)
	for _, row := range rows {
		r.checkRow(t, row, whole)
	}
}

// checkRow sends the request of a row and checks where it went.
func (r *rig) checkRow(t *testing.T, row routes.Row, url string) {
	t.Helper()
	engines := append(append([]*fakevllm.Server{}, r.P...), r.D...)
	path := row.Route.Path()
	if rest, ok := strings.CutPrefix(string(row.Route), row.Route.Method()+" /v1/responses/{}"); ok {
		path = "/v1/responses/" + r.stored("") + rest
	}
	for _, e := range engines {
		e.ForgetRequests()
	}
	contentType, body := "application/json", passedBody
	switch {
	case strings.HasPrefix(row.Route.Path(), "/v1/audio/"):
		contentType, body = "multipart/form-data; boundary=B", audioForm(nil)
	case row.Verdict == routes.PD:
		body = generating(row.Route.Path())
	case row.Route.Method() == http.MethodGet, path != row.Route.Path():
		body = ""
	}
	a := r.request(t, url, row, path, body, contentType)
	var got []string
	roles := 0
	for _, of := range [][]*fakevllm.Server{r.P, r.D} {
		before := len(got)
		for _, e := range of {
			got = append(got, received(e, row.Route.Method(), path)...)
		}
		if len(got) > before {
			roles++
		}
	}
	reason := a.header.Get("X-Pd-Decode-Only")
	switch row.Verdict {
	case routes.PD:
		assert.True(t, a.status == http.StatusOK && roles == 2 && reason == "",
			"%s: %d %s, decode-only %q, %d roles", row.Route, a.status, a.body, reason, roles)
	case routes.Passed:
		want := strings.Replace(body, `,"kv_transfer_params":{"remote_host":"x"}`, "", 1)
		assert.True(t, len(got) == 1 && got[0] == want && a.header.Get("Server") == "uvicorn",
			"%s: %d %v %s, engines got %q", row.Route, a.status, a.header, a.body, got)
		if generates := strings.Contains(row.Note, "X-PD-Decode-Only: route"); generates != (reason == "route") || !generates && reason != "" {
			t.Errorf("%s: decode-only %q", row.Route, reason)
		}
	case routes.FannedTo:
		assert.True(t, a.status == http.StatusNotFound && len(got) == 0,
			"%s without the key: %d %s, %d engines", row.Route, a.status, a.body, len(got))
		r.request(t, url, row, path, body, contentType, "X-Api-Key", adminKey)
		for _, e := range engines {
			n := len(received(e, row.Route.Method(), path))
			assert.Equal(t, 1, n, "%s: an engine got %d requests", row.Route, n)
		}
	case routes.Answered:
		// For the list of models, the proxy itself sends the engines a GET.
		if a.status != http.StatusOK || len(got) != 0 && row.Route.Path() != "/v1/models" {
			t.Errorf("%s: %d %s, %d engines", row.Route, a.status, a.body, len(got))
		}
	case routes.Refused:
		if notThere := a.status == http.StatusNotFound && string(a.body) == `{"detail":"Not Found"}` || a.status == http.StatusMethodNotAllowed; !notThere || len(got) != 0 {
			t.Errorf("%s: %d %s, %d engines", row.Route, a.status, a.body, len(got))
		}
	}
}

// request sends the request of a row.
func (r *rig) request(t *testing.T, url string, row routes.Row, path, body, contentType string, header ...string) answer {
	t.Helper()
	method := row.Route.Method()
	switch method {
	case "ANY":
		method = http.MethodPut
	case "WEBSOCKET":
		method = http.MethodGet
		header = append(header, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	}
	req := newRequest(t.Context(), t, method, url+path, strings.NewReader(body), header...)
	req.Header.Set("Content-Type", contentType)
	req.Close = method == http.MethodPut || len(header) > 2
	a := do(http.DefaultClient, req)
	require.NoError(t, a.err, row.Route)
	return a
}
