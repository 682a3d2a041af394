package pdctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/internal/pdctl/show"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	leak.Main(m)
}

// rig is an etcd and pdctl pointed at it.
type rig struct {
	t    *testing.T
	etcd *etcdtest.Server
	cli  *clientv3.Client
	// written, if not nil, is called for each write of commands that background starts later.
	written func(text string)
}

func newRig(t *testing.T) *rig {
	t.Helper()
	e := etcdtest.Start(t)
	return &rig{t: t, etcd: e, cli: e.Client(t)}
}

// run executes one command line.
func (r *rig) run(args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	return r.runEnv(map[string]string{"PD_ETCD_ENDPOINTS": r.etcd.Endpoint()}, confirmed(args)...)
}

// confirmed adds --yes to a command that asks for confirmation; TestConfirm tests the question.
func confirmed(args []string) []string {
	if slices.Contains([]string{"remove", "drain", "cordon", "weight", "revert", "apply"}, args[0]) {
		return slices.Insert(slices.Clone(args), 1, "--yes")
	}
	return args
}

func (r *rig) runEnv(env map[string]string, args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	return execute(r.t.Context(), env, args...)
}

func execute(ctx context.Context, env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = pdctl.Run(ctx, args, &out, &errs, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	return code, out.String(), errs.String()
}

// exits runs a command line and compares its exit code.
func (r *rig) exits(code int, args ...string) (printed struct{ out, errs string }) {
	r.t.Helper()
	var got int
	got, printed.out, printed.errs = r.run(args...)
	assert.Equal(r.t, code, got, "pdctl %s: %+v", strings.Join(args, " "), printed)
	return printed
}

// want runs a command line and compares its exit code and output.
func (r *rig) want(code int, stdout string, args ...string) string {
	r.t.Helper()
	printed := r.exits(code, args...)
	if d := cmp.Diff(stdout, printed.out); d != "" {
		r.t.Errorf("pdctl %s (-want +got)\n%s", strings.Join(args, " "), d)
	}
	return printed.errs
}

func (r *rig) put(key, value string) {
	r.t.Helper()
	_, err := r.cli.Put(r.t.Context(), key, value)
	require.NoError(r.t, err)
}

// enableAuth creates the users root, and part with rights, and returns the file with their password.
func (r *rig) enableAuth(rights map[string]clientv3.PermissionType) (password string) {
	r.t.Helper()
	ctx, password := r.t.Context(), filepath.Join(r.t.TempDir(), "password")
	testkit.WriteFile(r.t, password, "secret")
	_, err := r.cli.RoleAdd(ctx, "part")
	require.NoError(r.t, err)
	for key, right := range rights {
		_, err = r.cli.RoleGrantPermission(ctx, "part", key, clientv3.GetPrefixRangeEnd(key), right)
		require.NoError(r.t, err)
	}
	for _, user := range []string{"root", "part"} {
		_, err = r.cli.UserAdd(ctx, user, "secret")
		require.NoError(r.t, err)
		_, err = r.cli.UserGrantRole(ctx, user, user)
		require.NoError(r.t, err)
	}
	_, err = r.cli.AuthEnable(ctx)
	require.NoError(r.t, err)
	return password
}

func (r *rig) listings() (out struct {
	Revision  int64
	Instances []instance.Listing
	Removed   []show.Removal
}) {
	r.t.Helper()
	_, text, errs := r.run("list", "-o", "json")
	require.NoError(r.t, json.Unmarshal([]byte(text), &out), "%s%s", text, errs)
	return out
}

// removed returns the line that remove prints for an instance.
func removed(role, address string) string {
	return fmt.Sprintf("%s/%s: removed; an agent there is refused until: pdctl allow %[1]s %[2]s\n", role, address)
}

// startEngine starts a server that answers like vLLM's auxiliary routes; it returns its host:port.
func startEngine(t *testing.T, model string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"version":"0.12.0"}`) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(model, "secret") && req.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, `{"data":[{"id":%q,"max_model_len":4096}]}`, model)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// lockedBuffer collects the output of a running command.
type lockedBuffer struct {
	testkit.Buffer
	written func(text string)
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	n, err := l.Buffer.Write(p)
	if l.written != nil {
		l.written(string(p))
	}
	return n, err
}

func (l *lockedBuffer) has(part string) error {
	if s := l.String(); !strings.Contains(s, part) {
		return fmt.Errorf("%q is not in\n%s", part, s)
	}
	return nil
}

// background starts a command; stop waits for its end, after an optional interrupt.
func (r *rig) background(args ...string) (*lockedBuffer, func(interrupt bool) int) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	out := &lockedBuffer{written: r.written}
	done := make(chan int, 1)
	go func() {
		done <- pdctl.Run(ctx, confirmed(args), out, out, func(name string) (string, bool) {
			return r.etcd.Endpoint(), name == "PD_ETCD_ENDPOINTS"
		})
	}()
	var once sync.Once
	code := 0
	stop := func(interrupt bool) int {
		once.Do(func() {
			if interrupt {
				cancel()
			}
			code = <-done
			cancel()
		})
		return code
	}
	r.t.Cleanup(func() { stop(true) })
	return out, stop
}
