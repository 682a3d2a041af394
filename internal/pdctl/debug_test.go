package pdctl_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// debug reports on stderr what is missing in the archive, and route shows the share of a target.
func TestDebugAndRoute(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/limits/c", `{"v":1}`)
	var asked string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Path == "/route":
			raw, _ := io.ReadAll(q.Body)
			asked = string(raw)
			_, _ = io.WriteString(w, `{"model":"chat","target":"new","target_share":0.2,"way":"pair"}`)
		case (q.URL.Path == "/config" || q.URL.Path == "/log") && q.Header.Get("X-Api-Key") != "k":
			w.WriteHeader(http.StatusForbidden)
		default:
			_, _ = io.WriteString(w, "x")
		}
	}))
	defer proxy.Close()
	for key, want := range map[string]struct{ files, missing string }{
		"":      {"7 files, 3 notes", "/config.yaml: this command needs the admin key with which the proxies were started: set --admin-key or ADMIN_API_KEY\n"},
		"wrong": {"7 files, 3 notes", "/log.txt: the proxy answered 403: "},
		"k":     {"9 files, 1 note\n", "doctor.json: doctor found problems: "},
	} {
		code, out, errs := r.run("debug", "-f", filepath.Join(t.TempDir(), "d.tar.gz"), "--proxy", proxy.URL, "--admin-key", key)
		if code != 0 || !strings.Contains(out, want.files) || !strings.Contains(errs, want.missing) || strings.Contains(errs, "config.yaml") == (key == "k") {
			t.Errorf("key %q: %d %s %s", key, code, out, errs)
		}
	}
	code, out, errs := r.run("debug", "-f", "-", "--proxy", proxy.URL, "--admin-key", "k")
	zip, err := gzip.NewReader(strings.NewReader(out))
	require.NoError(t, err)
	first, err := tar.NewReader(zip).Next()
	require.NoError(t, err)
	assert.True(t, code == 0 && first.Name == "pdctl-debug/status.json" && strings.Contains(errs, "-: 9 files, 1 note\n"), "%d %s %s", code, first.Name, errs)
	for _, tc := range []struct {
		args []string
		want string
	}{{nil, `{"messages":[{"content":"why \"here\"?","role":"user"}]}`}, {[]string{"--model", "m"}, `{"messages":[{"content":"why \"here\"?","role":"user"}],"model":"m"}`}} {
		_, out, errs := r.run(append([]string{"route", "--prompt", `why "here"?`, "--proxy", proxy.URL, "--admin-key", "k"}, tc.args...)...)
		assert.True(t, asked == tc.want && strings.Contains(out, "target new (20 %)\n"),
			"asked %s, want %s: %s %s", asked, tc.want, out, errs)
	}
	_, out, errs = r.run("route", "--explain", "debug_test.go", "--proxy", proxy.URL, "--admin-key", "k")
	assert.Contains(t, out, "target new (20 %)\n", "%s %s", out, errs)
}

// An interrupted doctor reports no findings, and an interrupted debug writes no archive: what they could not
// read is missing because of the interrupt.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "d.tar.gz")
	for _, line := range []string{"doctor --probe --agents=false -o json", "debug -f " + file + " --proxy"} {
		ctx, cancel := context.WithCancel(t.Context())
		silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
			cancel()
			<-q.Context().Done()
		}))
		defer silent.Close()
		args := strings.Fields(line)
		if args[0] == "debug" {
			args = append(args, silent.URL)
		} else {
			r.put("/pd/decode/"+silent.Listener.Addr().String(), `{"models":["m"]}`)
		}
		code, out, errs := execute(ctx, r.env(), args...)
		assert.True(t, code == 1 && out == "" && strings.Contains(errs, "interrupted"), "%s: %d %s %s", line, code, out, errs)
	}
	assert.NoFileExists(t, file)
}

// debug runs its commands with the flags of its command line.
func TestDebug_PassesFlags(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("p\n"), 0o600))
	args := []string{"debug", "-f", filepath.Join(t.TempDir(), "d.tar.gz"), "--etcd-endpoints", r.etcd.Endpoint() + "," + r.etcd.Endpoint(),
		"--etcd-username", "u", "--etcd-password-file", password, "--timeout=3s"}
	code, out, errs := execute(t.Context(), map[string]string{"PD_ETCD_ENDPOINTS": testkit.FreePort(t)}, args...)
	assert.True(t, code == 0 && strings.Contains(out, "4 files, ") && !strings.Contains(errs, "exit code"),
		"%d %s %s", code, out, errs)
}
