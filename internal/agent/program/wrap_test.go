package program

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

func TestWrapExitCodes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind string
		want int
	}{{"exit=0", 0}, {"exit=3", 3}, {"exit=255", 255}} {
		t.Run(tc.kind, func(t *testing.T) {
			t.Parallel()
			w := wrapEngine(t, tc.kind)
			w.exits(t, tc.want)
			kv, _ := look(t, w.cli, w.key)
			assert.True(t, kv == nil, "registered")
		})
	}
	t.Run("no such program", func(t *testing.T) {
		t.Parallel()
		etcd := etcdtest.Start(t)
		p := startProcess(t, fast(etcd.Endpoint(), "decode", "127.0.0.1:1", "--restart=on-failure", "--", "pdmesh-no-such-program", "--port", "1"))
		_ = p.Wait()
		if code := p.ProcessState.ExitCode(); code != 127 || !strings.Contains(p.log.String(), "check the command after --") {
			t.Errorf("exit %d\n%s", code, p.log)
		}
	})
}

// After SIGTERM, the key has the state draining while the engine works. The
// engine gets the signal only when it is idle, after the key was deleted.
func TestWrapDrainsFirst(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	w := &wrapped{etcd: etcd, cli: etcd.Client(t), address: testkit.FreePort(t), socket: filepath.Join(t.TempDir(), "a.sock")}
	w.key = key("decode", w.address)
	w.start(t, "slow,look="+etcd.Endpoint()+"="+w.key)
	kv, rec := awaitState(t, w.cli, w.key, instance.Ready)
	assert.True(t, kv.Lease != 0 && rec.Address == w.address && rec.Models[0] == "org/m", "%+v", rec)
	leave := askSlowly(t, w.address)
	w.send(t, syscall.SIGTERM)
	awaitState(t, w.cli, w.key, instance.Draining)
	w.log.awaits(t, "still draining: 1 running")
	assert.NotContains(t, w.log.String(), "engine got")
	leave()
	w.exits(t, 7)
	require.True(t, testkit.Contains(t, w.log.String(), "engine got terminated", "engine finds 0 keys"))
	assert.Empty(t, cmp.Diff([]string{"ready", "draining", "deleted"}, history(t, w.cli, w.key)))
}

// askSlowly starts a completion that the engine never answers.
func askSlowly(t *testing.T, address string) (leave func()) {
	t.Helper()
	leave = beginRequest(t, "http://"+address)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	running := regexp.MustCompile(`(?m)^vllm:num_requests_running.* 1(\.0)?$`)
	testkit.Eventually(t, patience, func() error {
		resp, err := testkit.Ask(t.Context(), hc, http.MethodGet, "http://"+address+"/metrics", "")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || !running.Match(text) {
			return fmt.Errorf("the engine does not run the request yet: %v", err)
		}
		return nil
	})
	return leave
}

// beginRequest sends a request that must not be answered before leave is called.
func beginRequest(t *testing.T, engine string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := testkit.Ask(ctx, hc, http.MethodPost, engine+"/v1/completions", `{"model":"org/m","prompt":"hi","max_tokens":4}`)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			t.Errorf("the request ended by itself: %s", resp.Status)
		}
	}()
	return func() { cancel(); <-done }
}

// SIGINT from a terminal is passed on as SIGINT; a second one skips the drain.
func TestWrapInterrupt(t *testing.T) {
	t.Parallel()
	w := wrapEngine(t, "slow")
	awaitState(t, w.cli, w.key, instance.Ready)
	leave := askSlowly(t, w.address)
	defer leave()
	w.send(t, syscall.SIGINT)
	w.log.awaits(t, "still draining: 1 running")
	w.send(t, syscall.SIGINT)
	code := w.code(t)
	assert.True(t, code == 7 && strings.Contains(w.log.String(), "engine got interrupt"), "exit %d", code)
	awaitGone(t, w.cli, w.key)
}

// An engine that ignores SIGTERM is killed after --stop-timeout, or at the next signal. One
// that dies of the signal has ended normally, even if a shell around it returns 128+15.
func TestWrapStop(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, kind, limit string
		again             bool
		want              int
	}{
		{"limit", "stubborn", "100ms", false, 137},
		{"impatience", "stubborn", "1h", true, 137},
		{"by the signal", "die", "1h", false, 0},
		{"a shell's word for it", "word", "1h", false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := wrapEngine(t, tc.kind, "--stop-timeout", tc.limit)
			awaitState(t, w.cli, w.key, instance.Ready)
			w.send(t, syscall.SIGTERM)
			awaitGone(t, w.cli, w.key)
			if tc.again {
				w.log.awaits(t, "agent ended") // the drain is over: this one is for the engine
				w.send(t, syscall.SIGTERM)
			}
			w.exits(t, tc.want)
		})
	}
}

// If the engine crashes, it is "down" and its key deleted at once; the agent exits with its code.
func TestWrapCrash(t *testing.T) {
	t.Parallel()
	crash := filepath.Join(t.TempDir(), "crash")
	w := wrapEngine(t, "crash="+crash, "--ttl", "1m", "--probe-interval", "1m")
	awaitState(t, w.cli, w.key, instance.Ready)
	touch(t, crash)
	w.exits(t, 3)
	kv, rec := look(t, w.cli, w.key)
	assert.True(t, kv == nil, "the key outlives the engine: %+v", rec)
	// Neither the lease nor a probe could have reported it so soon.
	assert.Empty(t, cmp.Diff([]string{"ready", "down", "deleted"}, history(t, w.cli, w.key)))
	w.log.awaits(t, "engine exited: exit code 3")
}

// In a crash loop, each start is a new incarnation, there is no key between two starts, and the pauses grow.
func TestWrapCrashLoop(t *testing.T) {
	t.Parallel()
	crash := filepath.Join(t.TempDir(), "crash")
	// The first pause is long enough to be observed on a slow machine.
	w := wrapEngine(t, "crash="+crash, "--restart", "on-failure", "--restart-delay", "5s", "--restart-delay-max", "1h")
	var ids []string
	const lives = 3
	for range lives {
		_, rec := awaitState(t, w.cli, w.key, instance.Ready)
		ids = append(ids, rec.ID)
		touch(t, crash)
		awaitGone(t, w.cli, w.key)
		// During the pause, the agent reports it, is not healthy, and has no key.
		testkit.Eventually(t, patience, func() error {
			r := w.status(t)
			if r.Phase != "restarting" || r.Process == nil || r.Process.PID != 0 || r.Process.LastExit != "exit code 3" || r.Process.Starts != int64(len(ids)) {
				return fmt.Errorf("%+v %+v", r, r.Process)
			}
			assert.ErrorContains(t, r.Health(), "the engine has failed: exit code 3")
			if kv, rec := look(t, w.cli, w.key); kv != nil {
				t.Errorf("a key without an engine: %+v", rec)
			}
			return os.Remove(crash)
		})
	}
	assert.True(t, ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "incarnations %q", ids)
	for _, want := range []string{"restarting in 5s", "restarting in 10s", "restarting in 20s"} {
		w.log.awaits(t, want)
	}
	awaitState(t, w.cli, w.key, instance.Ready)
	if code, out, _ := ask(t, "status", "--socket", w.socket); code != 0 || !strings.Contains(out, "starts         4") || !strings.Contains(out, "last exit      exit code 3") {
		t.Errorf("status\n%s", out)
	}
	w.send(t, syscall.SIGTERM)
	w.exits(t, 7)
}

// A command that temporarily cannot be started, for example while its
// package is replaced, counts as another failure of the engine.
func TestWrapCannotStartAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	crash := filepath.Join(dir, "crash")
	env, err := exec.LookPath("env")
	require.NoError(t, err)
	etcd := etcdtest.Start(t)
	w := &wrapped{etcd: etcd, cli: etcd.Client(t), address: testkit.FreePort(t), socket: filepath.Join(dir, "a.sock"), env: filepath.Join(dir, "env")}
	w.key = key("decode", w.address)
	link := func() {
		t.Helper()
		require.NoError(t, os.Symlink(env, w.env))
	}
	link()
	w.start(t, "crash="+crash, "--restart", "on-failure", "--restart-delay", "100ms", "--restart-delay-max", "200ms")
	awaitState(t, w.cli, w.key, instance.Ready)
	require.NoError(t, os.Remove(w.env))
	touch(t, crash)
	w.log.awaits(t, "cannot start the command")
	require.NoError(t, os.Remove(crash))
	link()
	awaitState(t, w.cli, w.key, instance.Ready)
	w.send(t, syscall.SIGTERM)
	w.exits(t, 7)
}

// A signal during the pause before a restart ends the agent at once.
func TestWrapStopWhileWaiting(t *testing.T) {
	t.Parallel()
	w := wrapEngine(t, "exit=5", "--restart", "on-failure", "--restart-delay", "1h", "--restart-delay-max", "1h")
	w.log.awaits(t, "restarting in 1h0m0s")
	w.send(t, syscall.SIGTERM)
	w.exits(t, 5)
}

// The agent waits for an engine that loads slowly: it has no start deadline, and
// registers the engine once it answers. The probe intervals are realistic.
func TestWrapSlowLoading(t *testing.T) {
	t.Parallel()
	loaded := filepath.Join(t.TempDir(), "loaded")
	w := wrapEngine(t, "load="+loaded, "--ttl", "2s", "--allow-short-ttl")
	w.log.awaits(t, "not registered: ")
	// Probes are refused for several lease TTLs; the agent still waits.
	testkit.Eventually(t, patience, func() error {
		r := w.status(t)
		if r.Process == nil || r.Process.AgeSeconds < 5 {
			return fmt.Errorf("%+v", r.Process)
		}
		assert.Equal(t, "probing", r.Phase)
		assert.EqualValues(t, 1, r.Process.Starts)
		return nil
	})
	if code, _, errs := ask(t, "health", "--socket", w.socket); code != 1 || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "not serving: probing") {
		t.Errorf("health: %d %q", code, errs)
	}
	touch(t, loaded)
	awaitState(t, w.cli, w.key, instance.Ready)
	testkit.Eventually(t, patience, func() error {
		if code, out, errs := ask(t, "health", "--socket", w.socket); code != 0 || out != "serving decode/"+w.address+"\n" {
			return fmt.Errorf("health: %d %q %q", code, out, errs)
		}
		return nil
	})
	w.send(t, syscall.SIGTERM)
	w.exits(t, 7)
}

func TestWrapStartTimeout(t *testing.T) {
	t.Parallel()
	w := wrapEngine(t, "load=/no/such", "--start-timeout", "1s")
	// 143 on a machine so slow that the engine has not installed its signal handler yet.
	if code := w.code(t); code != 7 && code != 143 || !strings.Contains(w.log.String(), "not ready within --start-timeout (1s): ") {
		t.Errorf("exit %d", code)
	}
	// An engine that has started in time is not stopped.
	w = wrapEngine(t, "serve", "--start-timeout", "30s")
	awaitState(t, w.cli, w.key, instance.Ready)
	w.send(t, syscall.SIGTERM)
	code := w.code(t)
	assert.True(t, code == 7 && !strings.Contains(w.log.String(), "--start-timeout ("), "exit %d", code)
}

// SIGTERM while the engine loads: there is nothing to drain.
func TestWrapStopWhileLoading(t *testing.T) {
	t.Parallel()
	w := wrapEngine(t, "load=/no/such")
	w.log.awaits(t, "not registered: ")
	w.log.awaits(t, "engine starts")
	w.send(t, syscall.SIGTERM)
	w.exits(t, 7)
}

// If the agent is killed, the engine serves on by default, and a second one is
// not started at its port. An agent without a command registers it again.
func TestWrapAgentKilled(t *testing.T) {
	t.Parallel()
	w := wrapEngine(t, "serve", "--ttl", "60s")
	_, was := awaitState(t, w.cli, w.key, instance.Ready)
	pid := w.status(t).Process.PID
	w.send(t, syscall.SIGKILL)
	w.code(t)
	require.True(t, running(pid), "the engine went with its agent")
	second := &wrapped{etcd: w.etcd, cli: w.cli, key: w.key, address: w.address, socket: w.socket}
	second.start(t, "serve")
	if code := second.code(t); code != 1 || !strings.Contains(second.log.String(), "an engine that outlived its agent?") {
		t.Errorf("exit %d", code)
	}
	_, stop := startAgent(t, fast(w.etcd.Endpoint(), "decode", w.address))
	testkit.Eventually(t, patience, func() error {
		if kv, rec := look(t, w.cli, w.key); kv == nil || rec.State != instance.Ready || rec.ID != was.ID {
			return fmt.Errorf("%+v", rec)
		}
		return nil
	})
	stop()

	tied := wrapEngine(t, "serve", "--engine-dies-with-agent")
	awaitState(t, tied.cli, tied.key, instance.Ready)
	pid = tied.status(t).Process.PID
	tied.send(t, syscall.SIGKILL)
	tied.code(t)
	testkit.EventuallyTrue(t, patience, func() bool { return !running(pid) }, "the engine has ended")
}

// If etcd is unavailable from the start, the engine is still started, and the agent still stops it normally.
func TestWrapWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	w := &wrapped{etcd: etcd, address: testkit.FreePort(t), socket: filepath.Join(t.TempDir(), "a.sock")}
	etcd.Kill()
	w.start(t, "serve")
	w.log.awaits(t, "engine serves")
	w.log.awaits(t, "engine answers: registering")
	w.send(t, syscall.SIGTERM)
	w.exits(t, 7)
}
