package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/httpapi"
)

// Browsers get the page, and all other clients get JSON.
func TestRoot_ByAcceptHeader(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	for _, tc := range []struct {
		accept string
		page   bool
	}{
		{"", false}, {"*/*", false}, {"application/json", false}, {"text/plain", false}, {"text/html;q=0", false},
		{"application/json, text/html;q=0.9", false}, {"text/html;q=x", false},
		{"text/html", true}, {"TEXT/HTML; charset=utf-8", true},
		{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", true},
		{"application/json;q=0.5, text/html", true},
	} {
		_, header, body := call(t, http.MethodGet, s.URL+"/", "", "Accept", tc.accept)
		assert.Equal(t, tc.page, body == "dashboard /", "Accept %q: %q", tc.accept, body)
		assert.False(t, !tc.page && !strings.Contains(body, `"name":"pdmesh"`), "Accept %q: %q", tc.accept, body)
		assert.Equal(t, "Accept", header.Get("Vary"), "Accept %q: Vary", tc.accept)
	}
}

// The dashboard is at the same address as /status.
func TestDashboard_SameListenerAsStatus(t *testing.T) {
	t.Parallel()
	const html = "text/html"
	clients, operators := serve(t, deps(), true), httptest.NewServer(httpapi.NewAdminRouter(deps()))
	t.Cleanup(operators.Close)
	for _, tc := range []struct {
		name, url string
		code      int
		body      string
	}{
		{"clients' root", clients.URL + "/", 200, `"name":"pdmesh"`},
		{"clients' events", clients.URL + httpapi.DashboardEvents, 404, "Not Found"},
		{"operators' root", operators.URL + "/", 200, "dashboard /"},
		{"operators' events", operators.URL + httpapi.DashboardEvents, 200, "dashboard " + httpapi.DashboardEvents},
	} {
		code, header, body := call(t, http.MethodGet, tc.url, "", "Accept", html, "Origin", "https://evil.example")
		assert.True(t, code == tc.code && strings.Contains(body, tc.body), "%s: %d %s", tc.name, code, body)
		assert.Equal(t, "", header.Get("Access-Control-Allow-Origin"), "%s: origin whose pages may read it", tc.name)
	}
	off := deps()
	off.Dashboard = nil
	s := serve(t, off, false)
	_, _, body := call(t, http.MethodGet, s.URL+"/", "", "Accept", html)
	assert.Contains(t, body, `"name":"pdmesh"`)
	code, _, _ := call(t, http.MethodGet, s.URL+httpapi.DashboardEvents, "")
	assert.Equal(t, 404, code, "events with the dashboard off")
}

// No page of another origin may read the events, with any --allowed-origins.
func TestDashboard_OtherOriginsRefused(t *testing.T) {
	t.Parallel()
	d := deps()
	d.CORS = httpapi.CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
	s := serve(t, d, false)
	_, header, _ := call(t, http.MethodGet, s.URL+httpapi.DashboardEvents, "", "Origin", "https://evil.example")
	assert.Equal(t, "", header.Get("Access-Control-Allow-Origin"), "allowed origin")
}

// GET / lists only routes that its listener serves.
func TestIndexListsServedRoutes(t *testing.T) {
	t.Parallel()
	d := deps()
	d.Dashboard = nil
	operators := httptest.NewServer(httpapi.NewAdminRouter(d))
	t.Cleanup(operators.Close)
	for name, tc := range map[string]struct {
		url     string
		has     string
		without string
	}{
		"one listener": {serve(t, d, false).URL, "POST /instances/add", ""},
		"clients":      {serve(t, d, true).URL, "POST /v1/completions", "GET /status"},
		"operators":    {operators.URL, "GET /status", "POST /v1/completions"},
	} {
		_, _, body := call(t, http.MethodGet, tc.url+"/", "")
		var index struct{ Routes []string }
		if err := json.Unmarshal([]byte(body), &index); err != nil || !slices.Contains(index.Routes, tc.has) || slices.Contains(index.Routes, tc.without) {
			t.Errorf("%s: %v %s", name, err, body)
		}
		for _, route := range index.Routes {
			method, path, _ := strings.Cut(route, " ")
			if path == "/v1/chat/completions" {
				continue // its handler in this test panics
			}
			if code, _, body := call(t, method, tc.url+path, "{}"); code == http.StatusNotFound || code == http.StatusMethodNotAllowed {
				t.Errorf("%s: %s: %d %s", name, route, code, body)
			}
		}
	}
}
