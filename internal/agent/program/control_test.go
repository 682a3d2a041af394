package program

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// ask runs a subcommand.
func ask(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestControl(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m"}})
	socket := filepath.Join(t.TempDir(), "a.sock")
	_, stop := startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--socket", socket))
	kv, rec := awaitState(t, cli, k, instance.Ready)
	testkit.Eventually(t, patience, func() error {
		if code, _, errs := ask(t, "health", "--socket", socket); code != 0 {
			return fmt.Errorf("health: %d %s", code, errs)
		}
		return nil
	})
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())

	code, out, errs := ask(t, "status", "--socket", socket, "-o", "json")
	var r agentctl.Report
	err = json.Unmarshal([]byte(out), &r)
	require.True(t, err == nil && code == 0, "status: %d %v %s", code, err, errs)
	if r.Phase != "serving" || r.Registration.Phase != "registered" || r.Incarnation != rec.ID ||
		r.Registration.Lease != fmt.Sprintf("%x", kv.Lease) || r.Registration.LastRenewal == nil || r.Models[0] != "org/m" {
		t.Errorf("report %+v", r)
	}
	if _, out, _ := ask(t, "status", "--socket", socket); !strings.Contains(out, "decode/"+engine.Address()) || !strings.Contains(out, "registered") || !strings.Contains(out, "etcd           "+etcd.Endpoint()+", prefix /pd\n") {
		t.Errorf("status says\n%s", out)
	}
	text, err := agentctl.NewClient(socket).Metrics(t.Context())
	require.NoError(t, err)
	testkit.Contains(t, string(text),
		`pd_agent_registration_phase{phase="registered"} 1`, `pd_agent_registration_phase{phase="conflict"} 0`,
		`pd_agent_phase{phase="serving"} 1`, "pd_agent_engine_up 1", "pd_agent_lease_renewals_total ",
		"pd_agent_lease_renewal_failures_total 0", "pd_agent_registration_conflicts_total 0", "pd_agent_lease_last_renewal_age_seconds ")
	page := testkit.ReadFile(t, "../../../docs/reference/metrics.md")
	for _, name := range regexp.MustCompile(`(?m)^# HELP (pd_\S+)`).FindAllStringSubmatch(string(text), -1) {
		assert.Contains(t, string(page), "`"+name[1]+"`",
			"docs/reference/metrics.md does not mention %s", name[1])
	}

	// The engine fails: the agent is not healthy, and shows the reason.
	engine.Kill()
	awaitState(t, cli, k, instance.Down)
	testkit.Eventually(t, patience, func() error {
		if code, _, errs := ask(t, "health", "--socket", socket); code != 1 || !strings.Contains(errs, "down") {
			return fmt.Errorf("health: %d %s", code, errs)
		}
		return nil
	})

	code, _, errs = ask(t, "drain", "--socket", socket, "--wait", "30s")
	require.Equal(t, 0, code, "drain: %s", errs)
	awaitGone(t, cli, k)
	assert.Equal(t, 0, stop(), "exit")
	_, err = os.Stat(socket)
	assert.True(t, os.IsNotExist(err), "the socket is left behind: %v", err)
	for _, sub := range []string{"status", "drain", "health"} {
		if code, _, errs := ask(t, sub, "--socket", socket); code != 1 || !strings.Contains(errs, "no agent runs") {
			t.Errorf("%s without an agent: %d %s", sub, code, errs)
		}
	}
}

// Once the drained agent has exited, a supervisor may start another one,
// which opens the same socket before the command polls it again.
func TestDrainWaitsForOneAgent(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "a.sock")
	lis, err := agentctl.Listen(t.Context(), socket)
	require.NoError(t, err)
	var id atomic.Pointer[string]
	first, second := "first", "second"
	id.Store(&first)
	defer background.Start(t.Context(), func(ctx context.Context) {
		agentctl.Serve(ctx, lis, agentctl.Source{
			Report: func() agentctl.Report { return agentctl.Report{ID: *id.Load()} },
			Drain:  func() { id.Store(&second) },
		}, testLog())
	})()
	code, _, errs := ask(t, "drain", "--socket", socket, "--wait", "5s")
	assert.Equal(t, 0, code, "drain: %s", errs)
}

// While etcd is unavailable, a registered instance stays healthy, and the status shows the problem.
func TestHealthDoesNotDependOnEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	socket := filepath.Join(t.TempDir(), "a.sock")
	startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--socket", socket))
	awaitState(t, cli, key("decode", engine.Address()), instance.Ready)
	etcd.Kill()
	c := agentctl.NewClient(socket)
	testkit.Eventually(t, patience, func() error {
		r, err := c.Status(t.Context())
		if err != nil || r.Registration.Phase != "unknown" || r.Registration.RenewalFails == 0 || r.Registration.Reason == "" {
			return fmt.Errorf("%+v %w", r, err)
		}
		assert.NoError(t, r.Health())
		return nil
	})
	etcd.Restart()
}

// If the agent reads the role from the engine's command, the environment has only an address.
func TestHealthWithAnAddressInTheEnvironment(t *testing.T) {
	t.Setenv("PD_ADDRESS", "127.0.0.1:8100")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	path, err := agentctl.DefaultPath(instance.Key{Role: instance.Decode, Address: "127.0.0.1:8100"}, os.Getenv)
	require.NoError(t, err)
	lis, err := agentctl.Listen(t.Context(), path)
	require.NoError(t, err)
	defer background.Start(t.Context(), func(ctx context.Context) {
		agentctl.Serve(ctx, lis, agentctl.Source{Report: func() agentctl.Report { return agentctl.Report{Phase: "serving"} }}, testLog())
	})()
	// If other agents of this user run here, the command asks which one is meant, and lists this one.
	code, _, errs := ask(t, "health")
	assert.False(t, code != 0 && !(code == 1 && strings.Contains(errs, path)), "health: %d %s", code, errs)
}

// An agent with --zmq-register has no instance, but answers the same commands.
func TestControl_Bridge(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	socket, endpoint := filepath.Join(t.TempDir(), "a.sock"), "tcp://"+testkit.FreePort(t)
	_, stop := startAgent(t, []string{"--zmq-register", endpoint, "--etcd-endpoints", etcd.Endpoint(), "--socket", socket})
	testkit.Eventually(t, patience, func() error {
		if code, out, errs := ask(t, "health", "--socket", socket); code != 0 || out != "serving "+endpoint+"\n" {
			return fmt.Errorf("health: %d %s%s", code, out, errs)
		}
		return nil
	})
	want := "zmq-register   " + endpoint + ", 0 engines\nphase          serving\netcd           " + etcd.Endpoint() + ", prefix /pd\n"
	if code, out, errs := ask(t, "status", "--socket", socket); code != 0 || out != want {
		t.Errorf("status: %d %s%s", code, out, errs)
	}
	code, _, errs := ask(t, "drain", "--socket", socket, "--wait", "30s")
	assert.Equal(t, 0, code, "drain: %s", errs)
	assert.Equal(t, 0, stop(), "exit")
}

func TestSocketErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testkit.WriteFile(t, file, "")
	taken := filepath.Join(dir, "taken.sock")
	lis, err := net.Listen("unix", taken)
	require.NoError(t, err)
	defer lis.Close()
	for _, tc := range []struct{ path, says string }{
		{file, "is not a socket"},
		{taken, "another agent uses this control socket"},
		{filepath.Join(dir, "no", "such", "dir"), "control socket"},
	} {
		code, _, errs := ask(t, fast("127.0.0.1:1", "decode", "127.0.0.1:"+fmt.Sprint(2+len(tc.path)), "--socket", tc.path)...)
		assert.True(t, code == 1 && strings.Contains(errs, tc.says), "%s: exit %d, %q", tc.path, code, errs)
	}
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"status", "--role", "decode"}, 2, "set both or none"},
		{[]string{"status", "--role", "x", "--address", "127.0.0.1:1"}, 2, "--role"},
		{[]string{"status", "--role", "decode", "--address", "x"}, 2, "--address"},
		{[]string{"status", "--role", "decode", "--address", "127.0.0.1:1"}, 1, "no agent runs of decode/127.0.0.1:1"},
		{[]string{"status", "--socket", taken + "x", "-o", "yaml"}, 2, "table or json"},
		{[]string{"drain", "--socket", taken + "x", "--wait", "-1s"}, 2, "--wait"},
		{[]string{"health", "now"}, 2, "now"},
	} {
		code, _, errs := ask(t, tc.args...)
		assert.True(t, code == tc.code && strings.Contains(errs, tc.says), "%v: exit %d, %q", tc.args, code, errs)
	}
}
