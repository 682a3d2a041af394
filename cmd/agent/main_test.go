package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/pdmesh/pdmesh/internal/fakevllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

// envRun makes the test binary be the agent, so that signals can be tried.
const envRun = "PDMESH_TEST_RUN_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(envRun) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

const patience = 30 * time.Second

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) awaits(t *testing.T, part string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if s := l.String(); !strings.Contains(s, part) {
			return fmt.Errorf("%q is not in\n%s", part, s)
		}
		return nil
	})
}

// fast are the flags that all tests share.
func fast(etcd, role, address string, more ...string) []string {
	return append([]string{
		"--etcd-endpoints", etcd, "--role", role, "--address", address, "--probe-interval", "50ms",
		"--ttl", "2s", "--allow-short-ttl", "--kv-lease", "0s", "--log-level", "debug",
	}, more...)
}

// startAgent runs an agent in this process; stop asks it to drain and gives its exit code.
func startAgent(t *testing.T, args []string) (log *lockedBuffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &lockedBuffer{}
	done := make(chan int, 1)
	go func() { done <- run(ctx, args, log, log) }()
	var once sync.Once
	code := 0
	stop = func() int {
		once.Do(func() { cancel(); code = <-done })
		return code
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("agent:\n%s", log)
		}
	})
	return log, stop
}

func key(role, address string) string { return "/pd/" + role + "/" + address }

// look reads a record; nil when there is none.
func look(t *testing.T, cli *clientv3.Client, key string) (*mvccpb.KeyValue, instance.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	resp, err := cli.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, instance.Record{}
	}
	var rec instance.Record
	if err := json.Unmarshal(resp.Kvs[0].Value, &rec); err != nil {
		t.Errorf("record %q: %v", resp.Kvs[0].Value, err)
	}
	return resp.Kvs[0], rec
}

// awaitState waits until the record is in a state.
func awaitState(t *testing.T, cli *clientv3.Client, key string, want instance.State) (*mvccpb.KeyValue, instance.Record) {
	t.Helper()
	var kv *mvccpb.KeyValue
	var rec instance.Record
	testkit.Eventually(t, patience, func() error {
		if kv, rec = look(t, cli, key); kv == nil || rec.State != want {
			return fmt.Errorf("%s: state %q, want %q", key, rec.State, want)
		}
		return nil
	})
	return kv, rec
}

func awaitGone(t *testing.T, cli *clientv3.Client, key string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if kv, rec := look(t, cli, key); kv != nil {
			return fmt.Errorf("%s is there: %+v", key, rec)
		}
		return nil
	})
}

// history replays what happened to a key: states, and "gone" for its deletion.
func history(t *testing.T, cli *clientv3.Client, key string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var out []string
	for resp := range cli.Watch(ctx, key, clientv3.WithRev(1)) {
		for _, ev := range resp.Events {
			if ev.Type == mvccpb.Event_DELETE {
				return append(out, "gone")
			}
			var rec instance.Record
			if err := json.Unmarshal(ev.Kv.Value, &rec); err != nil {
				t.Fatal(err)
			}
			out = append(out, string(rec.State))
		}
	}
	return append(out, "(not gone)")
}

func TestRegistersAndDrains(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"org/m", "lora"}, MaxModelLen: 4096, TTFT: time.Hour})
	k := key("decode", engine.Address())
	log, stop := startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--model", "m", "--connector", "nixl",
		"--label", "zone=a", "--host-id", "h1"))
	kv, rec := awaitState(t, cli, k, instance.Ready)
	if kv.Lease == 0 || rec.StartedAt == nil || len(rec.ID) != 26 {
		t.Errorf("lease %d, record %+v", kv.Lease, rec)
	}
	want := instance.Record{
		V: 1, ID: rec.ID, Role: instance.Decode, Address: engine.Address(), Scheme: rec.Scheme, Models: []string{"org/m", "lora"},
		Connector: "nixl", KVRole: "kv_consumer", MaxModelLen: 4096, Version: "0.24.0", State: instance.Ready,
		StartedAt: rec.StartedAt, Source: "agent", HostID: "h1", Agent: "pd-agent/0.1.0", Labels: map[string]string{"zone": "a"},
	}
	if d := cmp.Diff(want, rec); d != "" {
		t.Error(d)
	}

	// A request that runs keeps the drain waiting; the record says so meanwhile.
	leave := longRequest(t, engine)
	code := make(chan int, 1)
	go func() { code <- stop() }()
	now, _ := awaitState(t, cli, k, instance.Draining)
	if now.Lease != kv.Lease || now.CreateRevision != kv.CreateRevision {
		t.Errorf("draining under lease %x, was %x", now.Lease, kv.Lease)
	}
	log.awaits(t, "still draining: 1 running, 0 waiting")
	leave()
	if c := <-code; c != 0 {
		t.Errorf("exit %d", c)
	}
	if kv, _ := look(t, cli, k); kv != nil {
		t.Error("the key outlives the agent")
	}
	if d := cmp.Diff([]string{"ready", "draining", "gone"}, history(t, cli, k)); d != "" {
		t.Error(d)
	}
	log.awaits(t, "drained: the engine is idle")
}

// longRequest starts a completion that runs until leave is called.
func longRequest(t *testing.T, engine *fakevllm.Server) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, engine.URL()+"/v1/completions",
			strings.NewReader(`{"model":"org/m","prompt":"hi","max_tokens":4}`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if resp, err := hc.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			t.Errorf("the long request ended by itself: %s", resp.Status)
		}
	}()
	testkit.Eventually(t, patience, func() error {
		if len(engine.Requests()) == 0 {
			return errors.New("the engine has not seen the request")
		}
		return nil
	})
	return func() { cancel(); <-done }
}

func TestEngineDiesAndComesBack(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	k := key("prefill", engine.Address())
	_, stop := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address()))
	first, was := awaitState(t, cli, k, instance.Ready)
	engine.Kill()
	down, rec := awaitState(t, cli, k, instance.Down)
	if down.Lease != first.Lease || down.CreateRevision != first.CreateRevision || rec.ID != was.ID {
		t.Errorf("down: %+v, was %+v", rec, was)
	}
	if err := engine.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	back, rec := awaitState(t, cli, k, instance.Ready)
	if back.Lease != first.Lease || rec.ID == was.ID {
		t.Errorf("lease %x, was %x; incarnation %s, was %s", back.Lease, first.Lease, rec.ID, was.ID)
	}
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if d := cmp.Diff([]string{"ready", "down", "ready", "draining", "gone"}, history(t, cli, k)); d != "" {
		t.Error(d)
	}
}

func TestWrongModelNeverRegisters(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"org/other"}})
	log, stop := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address(), "--model", "m"))
	log.awaits(t, "not registered: the engine serves org/other, not m")
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	resp, err := etcd.Client(t).Get(t.Context(), "", clientv3.WithFromKey())
	if err != nil || resp.Header.Revision != 1 {
		t.Errorf("something was written: revision %d, %v, %v", resp.Header.Revision, resp.Kvs, err)
	}
}

func TestEngineNeedsAKey(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{APIKey: "k"})
	log, _ := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address()))
	log.awaits(t, "HTTP 401: the engine wants an API key (--engine-api-key)")
	startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--engine-api-key", "k"))
	awaitState(t, etcd.Client(t), key("decode", engine.Address()), instance.Ready)
}

func TestEtcdDownAtStart(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	etcd.Stop()
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	log, _ := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address()))
	log.awaits(t, "engine answers: registering")
	etcd.Restart()
	awaitState(t, etcd.Client(t), key("prefill", engine.Address()), instance.Ready)
}

func TestEtcdAwayFromStartToEnd(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	log, stop := startAgent(t, fast(testkit.FreePort(t), "prefill", engine.Address()))
	log.awaits(t, "engine answers: registering")
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	// With a user name the login is tried on, and can be given up.
	log, stop = startAgent(t, fast(testkit.FreePort(t), "prefill", engine.Address(), "--etcd-username", "u", "--etcd-password", "topsecret"))
	log.awaits(t, "cannot log in to etcd yet")
	if code := stop(); code != 0 || strings.Contains(log.String(), "topsecret") {
		t.Errorf("exit %d", code)
	}
}

func TestEtcdRestartKeepsLeaseAndKey(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	k := key("decode", engine.Address())
	startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--ttl", "6s"))
	before, _ := awaitState(t, etcd.Client(t), k, instance.Ready)
	etcd.Restart()
	cli := etcd.Client(t)
	// Two renewals after the restart: what is left of the lease jumps up twice.
	left, jumps := int64(1<<30), 0
	testkit.Eventually(t, patience, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		ttl, err := cli.TimeToLive(ctx, clientv3.LeaseID(before.Lease))
		if err != nil {
			return err
		}
		if ttl.TTL > left {
			jumps++
		}
		left = ttl.TTL
		if jumps < 2 {
			return fmt.Errorf("%d renewals seen, %d s left", jumps, left)
		}
		return nil
	})
	after, _ := look(t, cli, k)
	if after == nil || after.Lease != before.Lease || after.Version != before.Version || after.ModRevision != before.ModRevision {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

func TestConflictLeavesTheOthersRecord(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	k := key("decode", engine.Address())
	startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--host-id", "a"))
	before, _ := awaitState(t, cli, k, instance.Ready)
	log, stop := startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--host-id", "b"))
	log.awaits(t, "conflict")
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	after, _ := look(t, cli, k)
	if after == nil || !bytes.Equal(after.Value, before.Value) || after.ModRevision != before.ModRevision {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

func TestOneAgentPerInstance(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	k := key("decode", engine.Address())
	args := fast(etcd.Endpoint(), "decode", engine.Address())
	_, stopFirst := startAgent(t, args)
	before, was := awaitState(t, cli, k, instance.Ready)
	log, _ := startAgent(t, args)
	log.awaits(t, "another agent of decode/"+engine.Address()+" runs here already")
	third, stopThird := startAgent(t, args)
	third.awaits(t, "runs here already")
	if code := stopThird(); code != 0 {
		t.Errorf("waiting agent: exit %d", code)
	}
	if after, _ := look(t, cli, k); after == nil || after.ModRevision != before.ModRevision {
		t.Errorf("before %v\nafter  %v", before, after)
	}
	if code := stopFirst(); code != 0 {
		t.Errorf("exit %d", code)
	}
	// The successor finds the same engine process.
	if _, rec := awaitState(t, cli, k, instance.Ready); rec.ID != was.ID {
		t.Errorf("incarnation %s, was %s", rec.ID, was.ID)
	}
}

// process is an agent in a process of its own.
type process struct {
	*exec.Cmd
	log *lockedBuffer
}

func startProcess(t *testing.T, args []string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), self, args...), log: &lockedBuffer{}}
	p.Env = append(os.Environ(), envRun+"=1")
	p.Stdout, p.Stderr = p.log, p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
		if t.Failed() {
			t.Logf("agent:\n%s", p.log)
		}
	})
	return p
}

func TestSecondSignalSkipsTheWait(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"org/m"}, TTFT: time.Hour})
	k := key("decode", engine.Address())
	p := startProcess(t, fast(etcd.Endpoint(), "decode", engine.Address()))
	awaitState(t, cli, k, instance.Ready)
	leave := longRequest(t, engine)
	defer leave()
	for i, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			awaitState(t, cli, k, instance.Draining)
			p.log.awaits(t, "still draining: 1 running")
		}
	}
	if err := p.Wait(); err != nil {
		t.Errorf("second signal: %v", err)
	}
	if kv, _ := look(t, cli, k); kv != nil {
		t.Error("the key outlives the agent")
	}
	p.log.awaits(t, "drained: told not to wait")
}

func TestKilledAgentAndItsSuccessor(t *testing.T) {
	t.Parallel()
	etcd := testkit.StartEtcd(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	k := key("decode", engine.Address())
	args := fast(etcd.Endpoint(), "decode", engine.Address())
	p := startProcess(t, slices.Concat(args, []string{"--ttl", "60s"}))
	before, was := awaitState(t, cli, k, instance.Ready)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	// The successor need not wait for the lease of the dead one, and the engine is
	// still the same process.
	p = startProcess(t, args)
	testkit.Eventually(t, patience, func() error {
		kv, rec := look(t, cli, k)
		if kv == nil || kv.Lease == before.Lease {
			return errors.New("not taken over")
		}
		if rec.ID != was.ID || rec.State != instance.Ready {
			t.Errorf("incarnation %s, was %s; state %s", rec.ID, was.ID, rec.State)
		}
		return nil
	})
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	awaitGone(t, cli, k) // with its lease
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "--role: is missing"},
		{"unknown flag", []string{"--rol", "prefill"}, "unknown flag: --rol"},
		{"argument", []string{"prefill"}, `unknown command "prefill"`},
		{"bad duration", []string{"--ttl", "x"}, "invalid argument"},
		{"prefix", []string{"--role=prefill", "--address=127.0.0.1:1", "--etcd-prefix=/"}, "invalid etcd prefix"},
		{"log level", []string{"--role=prefill", "--address=127.0.0.1:1", "--log-level=loud"}, `unknown log level "loud"`},
		{"log format", []string{"--role=prefill", "--address=127.0.0.1:1", "--log-format=xml"}, `unknown log format "xml"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			if code := run(t.Context(), tc.args, &out, &errs); code != 2 || out.Len() > 0 {
				t.Errorf("exit %d, output %q", code, &out)
			}
			if !strings.Contains(errs.String(), tc.want) || !strings.Contains(errs.String(), "See agent --help.") {
				t.Errorf("stderr %q lacks %q", &errs, tc.want)
			}
		})
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &errs); code != 0 || !strings.Contains(out.String(), "--drain-timeout") || strings.Contains(out.String(), "short-ttl") {
		t.Errorf("--help: exit %d\n%s%s", code, &out, &errs)
	}
	out.Reset()
	if code := run(t.Context(), []string{"--version"}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "agent 0.") {
		t.Errorf("--version: exit %d\n%s%s", code, &out, &errs)
	}
}

func TestDoesNotLinkTheEtcdServer(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/pdmesh/pdmesh/cmd/agent").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "go.etcd.io/etcd/server") || !strings.Contains(string(out), "go.etcd.io/etcd/client/v3") {
		t.Error("the agent links the etcd server, or nothing of etcd")
	}
}
