package cli_test

import (
	"context"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

const (
	modelName = "Qwen/Qwen2.5-7B-Instruct" // as in the examples
	adminKey  = "admin"
	patience  = 60 * time.Second
)

// stage is the fleet of the examples, with an instance for each of their addresses.
type stage struct {
	t     *testing.T
	cli   *clientv3.Client
	proxy *fleet.Proxy
	dir   string // working directory of commands
	env   []string

	registered, spare map[string]string // by the address of an example
	book              map[string]string // registered or spare, whichever is in use
	etcd              string            // endpoint of the fleet's etcd
	other             *etcdtest.Server  // target of exports
	before            int64             // revision before the change of undone
	change            int64             // revision of the change of undone; 0 before it
}

// newStage starts a proxy, two instances of each role and one with both roles, with their agents, and
// unregistered engines.
func newStage(t *testing.T) *stage {
	f := harness.NewFleet(t, binDir)
	s := &stage{t: t, dir: t.TempDir(), other: etcdtest.Start(t)}
	var err error
	s.proxy, err = f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", AdminKey: adminKey, Args: []string{"--connector", "nixl"}})
	require.NoError(t, err)
	s.etcd = s.proxy.Etcd[0]
	s.cli = etcdtest.Client(t, s.etcd)
	ports, err := fleet.FreePorts(7)
	require.NoError(t, err)
	node := fleet.NodeSpec{Connector: "nixl", Model: modelName, Etcd: s.proxy.Etcd, TTL: 30 * time.Second, EngineArgs: []string{"--vllm-version", "0.32.0"}}
	s.registered = map[string]string{}
	for i, at := range []struct {
		address string
		role    instance.Role
	}{
		{"10.0.0.7:8100", instance.Prefill}, {"10.0.0.8:8100", instance.Prefill},
		{"10.0.0.8:8200", instance.Decode}, {"10.0.0.9:8200", instance.Decode}, {"10.0.0.6:8100", instance.Both},
	} {
		n := node
		if at.role == instance.Decode {
			n.AgentArgs = []string{"--label", "rack=3"}
		}
		n.Name, n.Role, n.Port = fmt.Sprintf("engine-%d", i), at.role, ports[i]
		if i == 0 {
			n.EngineArgs = append(n.EngineArgs[:2:2], "--num-gpu-blocks-override", "1000", "--kv-events-config", fmt.Sprintf(
				`{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, ports[5], ports[6]))
		}
		started, err := f.StartNode(t.Context(), n)
		require.NoError(t, err)
		s.registered[at.address] = started.Address
	}
	s.spare = map[string]string{}
	for _, at := range []struct {
		address string
		mode    fakevllm.Mode
	}{
		{"10.0.0.7:8100", fakevllm.NIXL}, {"10.0.0.8:8100", fakevllm.NIXL}, {"10.0.0.8:8200", fakevllm.NIXL}, {"10.0.0.9:8200", fakevllm.NIXL},
		{"10.0.0.6:8100", fakevllm.NIXL}, {"[fd00::7]:8200", fakevllm.NIXL},
	} {
		s.spare[at.address] = fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleBoth, Mode: at.mode, Models: []string{modelName}, Version: "0.32.0"}).Address()
	}
	s.prepare(f.Dir())
	s.awaitServed()
	return s
}

// prepare creates the files that commands read and their environment.
func (s *stage) prepare(sockets string) {
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"where to?"}],"max_tokens":2}`, modelName)
	wrapper := "#!/bin/sh\necho $$ > " + filepath.Join(s.dir, "pdctl.pid") + "\nexec " + filepath.Join(binDir, "pdctl") + " \"$@\"\n"
	require.NoError(s.t, os.Mkdir(filepath.Join(s.dir, "bin"), 0o700))
	for name, text := range map[string]string{
		"body.json": body, "completion.json": strings.Replace(body, `"messages":[{"role":"user","content":"where to?"}]`, `"prompt":"where to?"`, 1),
		"proxy.pass": "secret of proxies\n", "root.pass": "secret of root\n", "bin/pdctl": wrapper,
	} {
		require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o700))
	}
	s.env = []string{
		"PATH=" + filepath.Join(s.dir, "bin") + ":" + binDir + ":" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + s.dir, "XDG_RUNTIME_DIR=" + sockets,
		"ADMIN_API_KEY=" + adminKey,
	}
}

// awaitServed waits until the proxy uses all registered instances.
func (s *stage) awaitServed() {
	s.t.Helper()
	require.NoError(s.t, s.proxy.WaitFor(s.t.Context(), 3, 3))
}

// put writes a key to the fleet's etcd.
func (s *stage) put(key, value string) {
	s.t.Helper()
	if _, err := s.cli.Put(s.t.Context(), key, value); err != nil {
		s.t.Fatal(err)
	}
}

// reset reverts the changes of a command.
func (s *stage) reset() {
	s.t.Helper()
	s.change = 0
	for _, prefix := range []string{"/pd/override/", "/pd/limits/", "/pd/pending/", "/pd/meta/kept", "mooncake/"} {
		s.remove(prefix, clientv3.WithPrefix())
	}
	all, err := s.cli.Get(s.t.Context(), "/pd/", clientv3.WithPrefix())
	require.NoError(s.t, err)
	for _, kv := range all.Kvs {
		if key := string(kv.Key); kv.Lease == 0 && (strings.HasPrefix(key, "/pd/prefill/") || strings.HasPrefix(key, "/pd/decode/")) {
			s.remove(key)
		}
	}
	s.awaitServed()
}

func (s *stage) remove(key string, opts ...clientv3.OpOption) {
	s.t.Helper()
	if _, err := s.cli.Delete(s.t.Context(), key, opts...); err != nil {
		s.t.Fatal(err)
	}
}

// revision returns the revision of the fleet's etcd, or that of the change to be undone.
func (s *stage) revision() int64 {
	s.t.Helper()
	if s.change != 0 {
		return s.change
	}
	resp, err := s.cli.Get(s.t.Context(), "/pd/meta/schema")
	require.NoError(s.t, err)
	return resp.Header.Revision
}

// here replaces the addresses of an example in a line by real ones.
func (s *stage) here(line string) string {
	var pairs []string
	for example, real := range s.book {
		pairs = append(pairs, example, real)
	}
	pairs = append(pairs,
		"10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", s.other.Endpoint(), "10.0.0.1:2379", s.other.Endpoint(),
		"10.0.0.1:8000", s.proxy.Address, "4710", strconv.FormatInt(s.before, 10), "4711", strconv.FormatInt(s.revision(), 10))
	return strings.NewReplacer(pairs...).Replace(line)
}

// typed is one line that runs in a shell.
type typed struct {
	out  testkit.Buffer
	cmd  *exec.Cmd
	stop context.CancelFunc
}

// begin starts a line. Its standard output and standard error are merged.
func (s *stage) begin(line, etcd string) *typed {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	c := &typed{cmd: exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line), stop: cancel}
	c.cmd.Dir, c.cmd.Env = s.dir, append(slices.Clip(s.env), "PD_ETCD_ENDPOINTS="+etcd)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Cancel = func() error { return syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
	require.NoError(s.t, c.cmd.Start())
	return c
}

// end waits for the command and returns its exit code.
func (c *typed) end() int {
	defer c.stop()
	_ = c.cmd.Wait() // the exit code is returned
	return c.cmd.ProcessState.ExitCode()
}

// sees waits until the output contains a text.
func (c *typed) sees(t *testing.T, words string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if !strings.Contains(c.out.String(), words) {
			return fmt.Errorf("%q is not in\n%s", words, c.out.String())
		}
		return nil
	})
}

// interrupt sends SIGINT to pdctl and to no other process of the line.
func (s *stage) interrupt() {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.dir, "pdctl.pid"))
	require.NoError(s.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGINT)
	}
	require.NoError(s.t, err)
}

// fillCache makes an engine store the prefix of a prompt and publish its KV events.
func (s *stage) fillCache() {
	s.t.Helper()
	harness.Post(s.t, "http://"+s.here("10.0.0.7:8100")+"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":2}`, modelName, strings.Repeat("the sea ", 60)))
}

// holds checks that a file contains a text.
func (s *stage) holds(file, want string) {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.dir, file))
	assert.True(s.t, err == nil && strings.Contains(string(raw), want), "%s is not in the file (%v)\n%s", want, err, raw)
}

// undone makes a change to be undone; 4710 is the revision before it.
func (s *stage) undone() {
	s.t.Helper()
	s.before = s.revision()
	c := s.begin(s.here(`pdctl drain decode/10.0.0.9:8200 --reason "wrong rack"`), s.etcd)
	if code := c.end(); code != 0 {
		s.t.Fatalf("exit %d\n%s", code, c.out.String())
	}
	resp, err := s.cli.Get(s.t.Context(), s.here("/pd/override/decode/10.0.0.9:8200"))
	require.True(s.t, err == nil && len(resp.Kvs) == 1, "%v %v", resp, err)
	s.change = resp.Kvs[0].ModRevision // agents may have written since
}

// secure starts a TLS-only etcd in place of the other one.
func (s *stage) secure() {
	s.t.Helper()
	ca := testkit.NewAuthority(s.t, "ca")
	cert, key := ca.Issue("etcd", testkit.Certificate{CN: "etcd", Hosts: []string{"127.0.0.1"}})
	s.book = map[string]string{"https://10.0.0.1:2379": "https://" + etcdtest.Start(s.t, etcdtest.WithTLS(cert, key, "")).Endpoint()}
	raw, err := os.ReadFile(ca.CA)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "ca.pem"), raw, 0o600)
	}
	require.NoError(s.t, err)
}
