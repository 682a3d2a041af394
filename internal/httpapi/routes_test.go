package httpapi_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/routes"
)

// registered returns the routes of a router.
func registered(t *testing.T, h http.Handler) map[routes.Route]bool {
	t.Helper()
	e, ok := h.(*gin.Engine)
	require.True(t, ok, "handler is %T, want *gin.Engine", h)
	out := map[routes.Route]bool{}
	for _, r := range e.Routes() {
		out[routes.Of(r.Method, r.Path)] = true
	}
	return out
}

func table(t *testing.T) (rows []routes.Row, own []routes.Route) {
	t.Helper()
	rows, own, err := routes.Table("../../docs/reference/routes.md")
	require.NoError(t, err)
	return rows, own
}

// vllmRoutes reads a list of routes; it returns what turns each on.
func vllmRoutes(t *testing.T, file string) map[routes.Route]string {
	t.Helper()
	out := map[routes.Route]string{}
	for line := range strings.Lines(string(testkit.ReadFile(t, file))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		require.Len(t, words, 3, "%s: %q is no route", file, line)
		out[routes.Of(words[0], words[1])] = words[2]
	}
	return out
}

// Every route of both vLLM releases is listed with the condition under which vLLM has it.
func TestTable_EveryVLLMRoute(t *testing.T) {
	t.Parallel()
	rows, _ := table(t)
	listed := map[string]map[routes.Route]string{}
	for _, release := range []string{"0.32", "0.33"} {
		list := vllmRoutes(t, "testdata/vllm-"+release+".routes")
		require.GreaterOrEqual(t, len(list), 80, "vLLM %s has %d routes", release, len(list))
		listed[release] = list
	}
	seen := map[routes.Route]bool{}
	for _, row := range rows {
		assert.False(t, seen[row.Route], "%s is there twice", row.Route)
		seen[row.Route] = true
		for release, list := range listed {
			when, has := list[row.Route]
			switch {
			case has != slices.Contains(row.Releases, release):
				t.Errorf("%s: the table says it is in %v, vLLM %s: %t", row.Route, row.Releases, release, has)
			case has && !strings.Contains(row.When, when):
				t.Errorf("%s: turned on by %q, vLLM %s says %q", row.Route, row.When, release, when)
			}
			delete(list, row.Route)
		}
		switch row.Verdict {
		case routes.PD, routes.Passed, routes.FannedTo, routes.Answered:
		case routes.Refused:
			assert.NotEqual(t, "", row.Note, "%s is refused without a reason", row.Route)
		default:
			t.Errorf("%s: %q is no verdict", row.Route, row.Verdict)
		}
	}
	for release, list := range listed {
		for route := range list {
			t.Errorf("%s of vLLM %s is not in docs/reference/routes.md", route, release)
		}
	}
}

// Every route of the code is in the table, and every served route of the table is in the code.
func TestTable_MatchesCode(t *testing.T) {
	t.Parallel()
	rows, own := table(t)
	code := registered(t, httpapi.NewRouter(deps(), false))
	for _, row := range rows {
		has := code[row.Route]
		delete(code, row.Route)
		assert.NotEqual(t, row.Verdict == routes.Refused, has, "%s is %s, and in the code", row.Route, row.Verdict)
	}
	for _, route := range own {
		assert.True(t, code[route], "%s is in the table of the proxy's own routes only", route)
		delete(code, route)
	}
	for route := range code {
		t.Errorf("%s is in no table of docs/reference/routes.md", route)
	}
}

// docs/tls.md has the routes that the right read allows, docs/api.md those that --admin-listen moves.
func TestDocs_OperatorRoutes(t *testing.T) {
	t.Parallel()
	d := deps()
	var err error
	d.AdminKey, err = apikeys.OpenAdmin("", keyFile(t, "sk-read reader read"), d.Log, nil)
	require.NoError(t, err)
	s := serve(t, d, false)
	part := func(page, begin, end string) string {
		_, text, _ := strings.Cut(string(testkit.ReadFile(t, "../../docs/"+page)), begin)
		text, _, _ = strings.Cut(text, end)
		return text
	}
	readable, movable := map[routes.Route]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile("`([A-Z]+) (/[^`]*)`").FindAllStringSubmatch(part("tls.md", "| `read` |", "\n"), -1) {
		readable[routes.Of(m[1], m[2])] = true
	}
	for _, m := range regexp.MustCompile("`(/[^`*]*)").FindAllStringSubmatch(part("api.md", "`--admin-listen` moves", "another address"), -1) {
		movable[m[1]] = false
	}
	clients := registered(t, httpapi.NewRouter(d, true))
	for route := range registered(t, httpapi.NewRouter(d, false)) {
		if clients[route] {
			continue
		}
		path := route.Path()
		keyless, _, _ := call(t, route.Method(), s.URL+path, "")
		code, _, _ := call(t, route.Method(), s.URL+path, "", "X-Api-Key", "sk-read")
		assert.Equal(t, readable[route], keyless == http.StatusUnauthorized && code != http.StatusForbidden,
			"%s: the right read allows it, on the page", route)
		if keyless == http.StatusNotFound || path == httpapi.DashboardEvents { // "fanned out" and "dashboard" on the page
			continue
		}
		found := false
		for name := range movable {
			if path == name || strings.HasPrefix(path, strings.TrimSuffix(name, "/")+"/") {
				movable[name], found = true, true
			}
		}
		assert.True(t, found, "%s is not on the page as a route that moves", route)
	}
	for name, moves := range movable {
		assert.True(t, moves, "%s is on the page as a route that moves", name)
	}
}

// level is a log level that can be changed.
type level struct{ name string }

func (l *level) Name() string { return l.name }
func (l *level) Set(name string) error {
	if name == "loud" {
		return fmt.Errorf("unknown log level %q: use error, warn", name)
	}
	l.name = name
	return nil
}

func TestLogNeedsTheAdminKey(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	for key, want := range map[string]int{"": 401, "wrong": 403, "secret": 200} {
		code, _, got := call(t, http.MethodGet, s.URL+"/log", "", "X-Api-Key", key)
		if code != want || code == 200 && got != "msg=x url=http://***@h\n" || code != 200 && strings.Contains(got, "msg=x") {
			t.Errorf("%q: %d %s", key, code, got)
		}
	}
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	for _, tc := range []struct {
		method, key, media, body string
		code                     int
		says                     string
	}{
		{"GET", "secret", "", "", 200, `{"level":"info"}`},
		{"PUT", "", "application/json", `{"level":"debug"}`, 401, "X-Api-Key"},
		{"PUT", "wrong", "application/json", `{"level":"debug"}`, 403, "Invalid API Key"},
		{"PUT", "secret", "text/plain", `{"level":"debug"}`, 400, "Content-Type"},
		{"PUT", "secret", "application/json", `debug`, 400, `{\"level\":\"debug\"}`},
		{"PUT", "secret", "application/json", `{"level":""}`, 400, `{\"level\":\"debug\"}`},
		{"PUT", "secret", "application/json", `{"level":"loud"}`, 400, "use error, warn"},
		{"GET", "secret", "", "", 200, `{"level":"info"}`},
		{"PUT", "secret", "application/json", `{"level":"debug"}`, 200, `{"level":"debug"}`},
		{"GET", "secret", "", "", 200, `{"level":"debug"}`},
		{"POST", "secret", "application/json", `{"level":"debug"}`, 405, `"type":"MethodNotAllowedError"`},
	} {
		var header []string
		if tc.key != "" {
			header = append(header, "X-Api-Key", tc.key)
		}
		if tc.media != "" {
			header = append(header, "Content-Type", tc.media)
		}
		code, _, got := call(t, tc.method, s.URL+"/log-level", tc.body, header...)
		assert.True(t, code == tc.code && strings.Contains(got, tc.says),
			"%s %q as %q: %d %s", tc.method, tc.body, tc.key, code, got)
	}
}
