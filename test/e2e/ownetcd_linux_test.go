package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// machine is a network namespace. It has a non-loopback address that is not reachable from outside the
// test.
type machine struct {
	t       *testing.T
	address string
	pid     string // process that keeps the namespace
}

// machines creates two connected machines.
func machines(t *testing.T) (here, there *machine) {
	t.Helper()
	here, there = newMachine(t, "10.9.0.1"), newMachine(t, "10.9.0.2")
	here.must("ip", "link", "add", "pd0", "type", "veth", "peer", "name", "pd0", "netns", there.pid)
	for _, m := range []*machine{here, there} {
		m.must("ip", "link", "set", "lo", "up")
		m.must("ip", "address", "add", m.address+"/24", "dev", "pd0")
		m.must("ip", "link", "set", "pd0", "up")
	}
	return here, there
}

func newMachine(t *testing.T, address string) *machine {
	t.Helper()
	for _, program := range []string{"nsenter", "ip", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	keeper := exec.CommandContext(t.Context(), "sleep", "infinity")
	keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	err := keeper.Start()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("only root makes network namespaces: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = keeper.Process.Kill(); _ = keeper.Wait() })
	return &machine{t: t, address: address, pid: strconv.Itoa(keeper.Process.Pid)}
}

// on returns the arguments of nsenter.
func (m *machine) on(command ...string) []string {
	return append([]string{"-t", m.pid, "--net", "--"}, command...)
}

// run runs a command there until it exits.
func (m *machine) run(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nsenter", m.on(command...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return string(out), err
}

func (m *machine) must(command ...string) string {
	m.t.Helper()
	out, err := m.run(command...)
	require.NoError(m.t, err)
	return out
}

// The embedded etcd serves another machine: with TLS, and with users once they are created on the proxy's
// machine. Agents and pdctl there use the same settings as for any etcd, even after a restart of the proxy.
func TestEmbeddedEtcd_RemoteClients(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	here, there := machines(t)
	a := testkit.NewAuthority(t, "fleet")
	cert, key := a.Issue("etcd", testkit.Certificate{CN: "etcd", Hosts: []string{here.address}})
	dir := t.TempDir()
	word := func(user string) string { return filepath.Join(dir, user) }
	var words []string
	for _, user := range []string{"root", schema.RoleProxy, schema.RoleOperator, schema.RoleAgentPrefill, schema.RoleAgentDecode} {
		require.NoError(t, os.WriteFile(word(user), []byte("secret of "+user), 0o600))
		words = append(words, "--password-file", user+"="+word(user))
	}
	etcd := here.address + ":2379"
	access := []string{"--etcd-endpoints", "https://" + etcd, "--etcd-ca", a.CA}
	as := func(user string) []string {
		return append(slices.Clip(access), "--etcd-username", user, "--etcd-password-file", word(user))
	}
	pdctl := func(args ...string) []string { return append([]string{filepath.Join(binDir, "pdctl")}, args...) }

	f := harness.NewFleet(t, binDir)
	launch := func(m *machine, name string, args ...string) *fleet.Process {
		t.Helper()
		args[0] = filepath.Join(binDir, args[0])
		p, err := f.Start(t.Context(), fleet.Spec{Name: name, Program: "/usr/bin/nsenter", Args: m.on(args...)})
		require.NoError(t, err)
		return p
	}
	startProxy := func() *fleet.Process {
		t.Helper()
		p := launch(here, "proxy", "proxy", "--host", here.address, "--port", "8000", "--connector", "nixl",
			"--etcd-listen", etcd, "--etcd-listen-cert", cert, "--etcd-listen-key", key, "--etcd-data-dir", filepath.Join(dir, "etcd"), "--state-dir", filepath.Join(dir, "state"),
			"--etcd-ca", a.CA, "--etcd-username", schema.RoleProxy, "--etcd-password-file", word(schema.RoleProxy))
		testkit.Eventually(t, time.Minute, func() error {
			out, err := here.run("curl", "-sS", "http://"+here.address+":8000/readyz")
			if err == nil && !strings.Contains(out, `"started":true`) {
				err = errors.New(out)
			}
			return err
		})
		return p
	}
	proxy := startProxy()

	// Without users the other machine is refused, and the error names the remedy.
	if out, err := there.run(pdctl(append(access, "list")...)...); err == nil || !strings.Contains(out, "no users yet") || !strings.Contains(out, "auth init --apply") {
		t.Errorf("before there are users: %v\n%s", err, out)
	}
	here.must(pdctl(append(access, append([]string{"auth", "init", "--apply"}, words...)...)...)...)
	if out, err := there.run(pdctl(append(access, "list")...)...); err == nil || !strings.Contains(out, "user name") {
		t.Errorf("without a user: %v\n%s", err, out)
	}
	if out, err := there.run(pdctl("--etcd-endpoints", etcd, "list")...); err == nil || !strings.Contains(out, "speaks TLS") {
		t.Errorf("without TLS: %v\n%s", err, out)
	}

	for _, n := range []struct {
		m          *machine
		role, user string
	}{{here, "prefill", schema.RoleAgentPrefill}, {there, "decode", schema.RoleAgentDecode}} {
		launch(n.m, n.role, "fakevllm", "--host", n.m.address, "--port", "8100", "--role", n.role, "--mode", "nixl", "--model", harness.Model)
		launch(n.m, n.role+"-agent", append([]string{"agent", "--role", n.role, "--address", n.m.address + ":8100", "--connector", "nixl"}, as(n.user)...)...)
	}
	served := func() {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			out, err := there.run("curl", "-sSf", "-D", "-", "-H", "Content-Type: application/json", "-d", `{"prompt":"anybody there?","max_tokens":4}`,
				"http://"+here.address+":8000/v1/completions")
			if err == nil && strings.Contains(out, "X-Pd-Decode-Only") {
				err = errors.New(out)
			}
			return err
		})
	}
	served()
	operator := as(schema.RoleOperator)
	testkit.Contains(t, there.must(pdctl(append(operator, "list")...)...), here.address+":8100", there.address+":8100")
	there.must(pdctl(append(operator, "drain", "--yes", "prefill", here.address+":8100", "--wait", "--timeout", "1m")...)...)
	there.must(pdctl(append(operator, "undrain", "prefill", here.address+":8100")...)...)

	// The users are stored in etcd and exist right after a restart.
	require.NoError(t, proxy.Stop(t.Context()))
	startProxy()
	served()
	if out, err := there.run(pdctl(append(access, "list")...)...); err == nil || !strings.Contains(out, "user name") {
		t.Errorf("without a user, after a restart: %v\n%s", err, out)
	}
}
