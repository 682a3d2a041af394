package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd/process"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// envRun is the variable with which the test binary runs as the proxy.
const envRun = "PDMESH_TEST_RUN_PROXY"

func TestMain(m *testing.M) {
	process.MaybeMain()
	if os.Getenv(envRun) != "" {
		main()
	}
	leak.Main(m)
}

// startProxy runs a proxy in a separate process; stop sends SIGTERM and returns the error of the process.
func startProxy(t *testing.T, env []string, args ...string) (stop func() error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self, append(args, "--state-dir", t.TempDir())...)
	cmd.Env = append(append(os.Environ(), envRun+"=1"), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	var once sync.Once
	stop = func() error {
		once.Do(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			err = cmd.Wait()
		})
		return err
	}
	t.Cleanup(func() {
		_ = stop()
		if t.Failed() {
			t.Logf("proxy:\n%s", &out)
		}
	})
	return stop
}

func ask(t *testing.T, env map[string]string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, &o, &e)
	return code, o.String(), e.String()
}

// The proxy sends READY only after it has read the membership, feeds the watchdog, and announces a stop.
// health also needs an instance that can serve.
func TestSystemdAndHealth(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	etcd.Kill()
	sd := testkit.StartSystemd(t)
	_, port, err := net.SplitHostPort(testkit.FreePort(t))
	require.NoError(t, err)
	stop := startProxy(t, []string{"NOTIFY_SOCKET=" + sd.Path, "WATCHDOG_USEC=200000"},
		"--port", port, "--host", "0.0.0.0", "--etcd-endpoints", etcd.Endpoint())
	sd.Await(t, "STATUS=waiting: the membership has not been read", 1)
	sd.Await(t, "WATCHDOG=1", 2)
	if n := sd.Count("READY=1"); n != 0 {
		t.Error("ready without a membership")
	}
	settings := map[string]string{"PD_PORT": port, "PD_HOST": "0.0.0.0"}
	if code, out, errs := ask(t, settings, "health"); code != 1 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "not ready: the membership has not been read") {
		t.Errorf("health: %d %q %q", code, out, errs)
	}
	if code, out, errs := ask(t, settings, "health", "--live"); code != 0 || out != "alive\n" {
		t.Errorf("health --live: %d %q %q", code, out, errs)
	}
	etcd.Restart()
	sd.Await(t, "READY=1", 1)
	cli := etcd.Client(t)
	testkit.Eventually(t, tlsPatience, func() error { // its presence has a host name, for pdctl
		resp, err := cli.Get(t.Context(), "/pd/proxies/", clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 || !strings.Contains(string(resp.Kvs[0].Value), `"address":"127.0.0.1:`+port+`"`) {
			return fmt.Errorf("presence %v, %v", resp, err)
		}
		return nil
	})
	if code, out, errs := ask(t, nil, "health", "--port", port); code != 1 || out != "" || !strings.Contains(errs, "not ready: no decode instance is registered: nothing is served") {
		t.Errorf("health: %d %q %q", code, out, errs)
	}
	from := sd.Count("WATCHDOG=1")
	sd.Await(t, "WATCHDOG=1", from+2)
	if err := stop(); err != nil {
		t.Error(err)
	}
	sd.Await(t, "STOPPING=1", 1)
	sd.Await(t, "EXTEND_TIMEOUT_USEC=45000000", 1)
	if code, _, errs := ask(t, settings, "health"); code != 1 || !strings.Contains(errs, "no proxy answers at 127.0.0.1:"+port) {
		t.Errorf("health: %d %q", code, errs)
	}
}

// pd_ready agrees with /readyz: instances that all serve but cannot be paired need the fallback.
func TestReadyMetric(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	for role, connector := range map[fakevllm.Role]string{fakevllm.RolePrefill: "nixl", fakevllm.RoleDecode: "ascend"} {
		e := fakevllm.StartTest(t, fakevllm.Options{Role: role, Mode: fakevllm.Plain, Models: []string{"m"}})
		put(t, cli, fmt.Sprintf("/pd/%s/%s", role, e.Address()), fmt.Sprintf(`{"v":1,"id":"1","address":%q,"models":["m"],"connector":%q}`, e.Address(), connector))
	}
	hc := &http.Client{Timeout: tlsPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	for fallback, want := range map[string]struct{ readyz, metric string }{
		"none":   {"no prefill instance can be paired with a decode instance", "\npd_ready 0\n"},
		"decode": {`"prefill_instances":1,"ready":true`, "\npd_ready 1\n"},
	} {
		p := runProxy(t, "--etcd-endpoints", etcd.Endpoint(), "--fallback", fallback)
		testkit.Eventually(t, tlsPatience, func() error {
			if text, err := p.get(hc, "/readyz"); !strings.Contains(text, want.readyz) {
				return fmt.Errorf("%s %w", text, err)
			}
			return nil
		})
		text, err := p.get(hc, "/metrics")
		require.NoError(t, err)
		require.True(t, testkit.Contains(t, text, want.metric, `pd_membership_instances{role="prefill",view="serving"} 1`, `pd_membership_instances{role="decode",view="serving"} 1`))
	}
}

func TestHealthAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		status     int
		hang       bool
		code       int
		says       string
	}{
		{"ready", `{"ready":true,"prefill_instances":2,"decode_instances":3}`, 200, false, 0, "ready, 2 prefill and 3 decode instances"},
		{"not ready", `{"ready":false,"reason":"because\u001b[1m"}`, 503, false, 1, `not ready: because\u001b[1m`},
		{"another server", "hello", 200, false, 1, "is it a proxy?"},
		{"no such route", "404", 404, false, 1, "404 Not Found"},
		{"hangs", "", 200, true, 1, "no answer from 127.0.0.1:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := testkit.Listen(t)
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tc.hang {
					<-r.Context().Done()
					return
				}
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body))
			})}
			done := make(chan struct{})
			go func() { defer close(done); _ = srv.Serve(l) }()
			t.Cleanup(func() { _ = srv.Close(); <-done })
			_, port, _ := net.SplitHostPort(l.Addr().String())
			code, out, errs := ask(t, map[string]string{"PD_PORT": port}, "health")
			if code != tc.code || !strings.Contains(out+errs, tc.says) || strings.Contains(errs, "\x1b") || strings.Count(out+errs, "\n") != 1 {
				t.Errorf("exit %d, %q %q", code, out, errs)
			}
		})
	}
	for says, args := range map[string][]string{
		"unexpected argument":       {"health", "now"},
		"unknown flag: --liev":      {"health", "--liev"},
		"must be the port of":       {"health", "--port", "0"},
		"must be a whole number":    {"health", "--port", "x"},
		"unexpected argument \"x\"": {"x"},
	} {
		if code, _, errs := ask(t, nil, args...); code != 2 || !strings.Contains(errs, says) {
			t.Errorf("%q: exit %d, %q", args, code, errs)
		}
	}
}

// A proxy whose log is not read continues and can be stopped. The reader may stall, as a terminal does after
// Ctrl-S, or end.
func TestLog_ReaderStalls(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprintf("removed %v", removed), func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			require.NoError(t, err)
			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer r.Close()
			address := testkit.FreePort(t)
			_, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self, "--port", port, "--etcd-endpoints", etcdtest.Start(t).Endpoint(), "--state-dir", t.TempDir())
			cmd.Env = append(os.Environ(), envRun+"=1")
			cmd.Stderr = w
			require.NoError(t, cmd.Start())
			_ = w.Close()
			get := func(path string) (int, error) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
				if err != nil {
					return 0, err
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					return 0, err
				}
				return resp.StatusCode, resp.Body.Close()
			}
			testkit.Eventually(t, time.Minute, func() error {
				if code, err := get("/livez"); err != nil || code != http.StatusOK {
					return fmt.Errorf("%d, %w", code, err)
				}
				return nil
			})
			if removed {
				_ = r.Close()
			}
			// More lines than the pipe holds (64 KiB): each has about 200 bytes.
			for i := range 1000 {
				if code, err := get("/v1/models"); err != nil || code != http.StatusServiceUnavailable {
					t.Fatalf("request %d: %d, %v", i, code, err)
				}
			}
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer late.Stop()
			if err := cmd.Wait(); err != nil {
				t.Errorf("its end: %v", err)
			}
		})
	}
}
