package program

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// envEngine makes the test binary an engine; its value is the kind. The engine listens at --port.
const envEngine = "PDMESH_TEST_ENGINE"

// engineMain runs an engine; kind has words separated by commas.
//
//	load=FILE    listens once FILE is there
//	crash=FILE   exits with code 3 once FILE is there
//	exit=N       exits with code N at once
//	stubborn     ignores SIGTERM
//	die          has the default reaction to SIGTERM
//	word         exits with 128+n after signal n, as a shell does
//	look=EP=KEY  finally prints whether KEY is in the etcd at EP
//	slow         never answers completions
func engineMain(kind string, args []string) int {
	has := map[string]string{}
	for w := range strings.SplitSeq(kind, ",") {
		name, value, _ := strings.Cut(w, "=")
		has[name] = value
	}
	is := func(w string) bool { _, ok := has[w]; return ok }
	end := make(chan os.Signal, 4)
	switch {
	case is("stubborn"):
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	case !is("die"):
		signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	}
	fmt.Println("engine starts", os.Getpid())
	fmt.Println("engine's side channel", os.Getenv(setup.EnvSidePort))
	if n, err := strconv.Atoi(has["exit"]); err == nil {
		return n
	}
	there := func(path string) bool { _, err := os.Stat(path); return path != "" && err == nil }
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	port, o := "", fakevllm.Options{Models: []string{"org/m"}}
	for i, a := range args {
		switch a {
		case "--port":
			port = args[i+1]
		case "--kv-events-config":
			fmt.Println("engine's KV events", args[i+1])
			var err error
			if o.KVEvents, err = fakevllm.ParseKVEvents(args[i+1]); err != nil {
				fmt.Println("engine:", err)
				return 1
			}
			o.CacheBlocks, o.MaxModelLen = 64, 512
		}
	}
	if is("slow") {
		o.TTFT = time.Hour
	}
	o.Addr = net.JoinHostPort("127.0.0.1", port)
	var s *fakevllm.Server
	for {
		if s == nil && (!is("load") || there(has["load"])) {
			var err error
			if s, err = fakevllm.Start(context.Background(), o); err != nil {
				fmt.Println("engine:", err)
				return 1
			}
			fmt.Println("engine serves")
		}
		if there(has["crash"]) {
			return 3
		}
		select {
		case sig := <-end:
			fmt.Println("engine got", sig)
			if ep, key, ok := strings.Cut(has["look"], "="); ok {
				fmt.Println("engine finds", lookFrom(ep, key))
			}
			if n, ok := sig.(syscall.Signal); ok && is("word") {
				return 128 + int(n)
			}
			return 7
		case <-tick.C:
		}
	}
}

func lookFrom(endpoint, key string) string {
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err.Error()
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	resp, err := cli.Get(ctx, key)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d keys", len(resp.Kvs))
}

// wrapped is an agent with its engine, in a separate process.
type wrapped struct {
	*process
	etcd    *etcdtest.Server
	cli     *clientv3.Client
	key     string
	address string
	socket  string
	argv    []string // further arguments of the engine
	env     string   // program that sets the engine's environment; default env
	done    chan error
}

// wrapEngine starts an agent with an engine. more are further flags of the agent.
func wrapEngine(t *testing.T, kind string, more ...string) *wrapped {
	t.Helper()
	w := &wrapped{etcd: etcdtest.Start(t), address: testkit.FreePort(t)}
	w.cli, w.key = w.etcd.Client(t), key("decode", w.address)
	w.socket = filepath.Join(t.TempDir(), "a.sock")
	w.start(t, kind, more...)
	return w
}

func (w *wrapped) start(t *testing.T, kind string, more ...string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(w.address)
	require.NoError(t, err)
	args := append([]string{
		"--etcd-endpoints", w.etcd.Endpoint(), "--role", "decode", "--probe-interval", "50ms", "--ttl", "10s",
		"--kv-lease", "0s", "--log-level", "debug", "--socket", w.socket,
	}, more...)
	// Address, model and port are derived from the command.
	args = append(args, "--", cmp.Or(w.env, "env"), envRun+"=", envEngine+"="+kind, self, "--model", "org/m", "--port", port)
	args = append(args, w.argv...)
	w.process = startProcess(t, args)
	w.done = make(chan error, 1)
	go func() { w.done <- w.Wait() }()
	t.Cleanup(func() { // the engine may outlive its agent
		for line := range strings.Lines(w.log.String()) {
			if rest, ok := strings.CutPrefix(line, "engine starts "); ok {
				if pid, err := strconv.Atoi(strings.TrimSpace(rest)); err == nil && isEngine(pid) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	})
}

// isEngine reports whether pid still belongs to an engine.
func isEngine(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && strings.Contains(string(env), envEngine+"=")
}

// code waits until the agent ends and returns its exit code.
func (w *wrapped) code(t *testing.T) int {
	t.Helper()
	select {
	case <-w.done:
		return w.ProcessState.ExitCode()
	case <-t.Context().Done():
		return -1
	}
}

// exits waits until the agent ends and checks its exit code.
func (w *wrapped) exits(t *testing.T, want int) {
	t.Helper()
	assert.Equal(t, want, w.code(t), "exit")
}

func (w *wrapped) send(t *testing.T, sig os.Signal) {
	t.Helper()
	require.NoError(t, w.Process.Signal(sig))
}

func (w *wrapped) status(t *testing.T) agentctl.Report {
	t.Helper()
	r, err := agentctl.NewClient(w.socket).Status(t.Context())
	if err != nil {
		t.Log(err)
	}
	return r
}

func touch(t *testing.T, path string) {
	t.Helper()
	testkit.WriteFile(t, path, "")
}

func running(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(raw), ") ")
	return state[0] != 'Z' && state[0] != 'X'
}
