package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
