package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

// doctorRig is a small fleet that pdctl doctor examines, as from another machine: it does not see the agents'
// sockets.
type doctorRig struct {
	t    *testing.T
	f    *fleet.Fleet
	s    *stage // directory and environment of the commands
	etcd string
	cli  *clientv3.Client
}

// newDoctorRig returns a rig without members.
func newDoctorRig(t *testing.T, etcd string) *doctorRig {
	s := &stage{t: t, dir: t.TempDir()}
	s.prepare(t.TempDir())
	return &doctorRig{t: t, f: harness.NewFleet(t, binDir), s: s, etcd: etcd, cli: etcdtest.Client(t, etcd)}
}

// needsCurl skips a test whose lines run curl.
func needsCurl(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("the lines need curl")
	}
}

// run runs one line and returns its exit code and output.
func (w *doctorRig) run(line string) (int, string) {
	w.t.Helper()
	c := w.s.begin(line, w.etcd)
	code := c.end()
	return code, c.out.String()
}

// findings returns the exit code and the findings of pdctl doctor.
func (w *doctorRig) findings(more ...string) (int, []doctor.Finding) {
	w.t.Helper()
	code, out := w.run("pdctl doctor --agents=false -o json " + strings.Join(more, " ") + " 2>/dev/null")
	var d struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		w.t.Fatalf("exit %d: %v\n%s", code, err, out)
	}
	return code, d.Findings
}

// finds waits until doctor reports a finding of a check about a subject that contains each of the words.
func (w *doctorRig) finds(check, subject string, words ...string) (is doctor.Finding) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		_, list := w.findings()
		i := slices.IndexFunc(list, func(f doctor.Finding) bool { return f.Check == check && f.Subject == subject })
		if i < 0 {
			return fmt.Errorf("no finding of %s about %s in %+v", check, subject, list)
		}
		is = list[i]
		return nil
	})
	text := strings.Join(append([]string{is.What, is.Why, is.Cure}, is.Commands...), "\n")
	require.True(w.t, testkit.Contains(w.t, text, words...))
	return is
}

// clean waits until doctor has no findings.
func (w *doctorRig) clean() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		if code, list := w.findings(); code != 0 || len(list) > 0 {
			return fmt.Errorf("exit %d: %+v", code, list)
		}
		return nil
	})
}

// agent starts an agent, as on a separate machine.
func (w *doctorRig) agent(name string, env []string, args ...string) *fleet.Process {
	w.t.Helper()
	p, err := w.f.Start(w.t.Context(), fleet.Spec{
		Name: name, Program: "agent", Env: append([]string{"XDG_RUNTIME_DIR=" + w.t.TempDir()}, env...),
		Args: append([]string{"--etcd-endpoints", w.etcd, "--connector", "nixl", "--model", modelName, "--ttl", "5s", "--host-id", name}, args...),
	})
	require.NoError(w.t, err)
	return p
}

// engine starts an engine in this process.
func (w *doctorRig) engine(o fakevllm.Options) *fakevllm.Server {
	w.t.Helper()
	if o.Models == nil {
		o.Models = []string{modelName}
	}
	o.Mode, o.Version = fakevllm.NIXL, "0.32.0"
	return fakevllm.StartTest(w.t, o)
}

// published returns the values that refused agents have published, with their numbers of writes.
func (w *doctorRig) published() map[string]int64 {
	w.t.Helper()
	resp, err := w.cli.Get(w.t.Context(), "/pd/agents/", clientv3.WithPrefix())
	require.NoError(w.t, err)
	out := map[string]int64{}
	for _, kv := range resp.Kvs {
		out[string(kv.Value)] = kv.Version
	}
	return out
}

// An agent that cannot register is visible from another machine with its reason and its cure, until it
// can register.
func TestRefusedAgents(t *testing.T) {
	t.Parallel()
	w := newDoctorRig(t, etcdtest.Start(t).Endpoint())
	if _, err := w.f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", EtcdEndpoints: []string{w.etcd}, Args: []string{"--connector", "nixl"}}); err != nil {
		t.Fatal(err)
	}
	prefill, decode := w.engine(fakevllm.Options{Role: fakevllm.RolePrefill}).Address(), w.engine(fakevllm.Options{Role: fakevllm.RoleDecode}).Address()
	w.agent("p1", nil, "--role", "prefill", "--address", prefill)
	w.agent("d1", nil, "--role", "decode", "--address", decode)
	w.clean()
	assert.Len(t, w.published(), 0, "registered agents have published")
	host, err := os.Hostname()
	require.NoError(t, err)

	unused := testkit.FreePort(t)
	other := w.engine(fakevllm.Options{Addr: testkit.FreePort(t), Role: fakevllm.RoleDecode, Models: []string{"llama"}})
	taker := w.agent("taker", nil, "--role", "decode", "--address", decode)
	w.agent("early", nil, "--role", "decode", "--address", unused)
	w.agent("wrong", nil, "--role", "decode", "--address", other.Address())
	w.finds("conflict", "decode/"+decode, "the one on "+host+" is not registered", `another host holds this key (host id "d1"`, "pdctl get decode/"+decode, "(on "+host+": pdmesh-agent drain --role decode --address "+decode+")")
	w.finds("agent", "decode/"+unused, "its agent on "+host+" has the phase probing, and its registration the phase idle", "refused", "(on "+host+": pdmesh-agent status --role decode --address "+unused+")")
	w.finds("model", "decode/"+other.Address(), "serves llama, not "+modelName, "start the engine with the right model")

	assert.NoError(t, taker.Stop(t.Context()))
	w.engine(fakevllm.Options{Addr: unused, Role: fakevllm.RoleDecode})
	for value, times := range w.published() {
		assert.True(t, times == 1, "written %d times: %s", times, value)
	}
	other.Close()
	w.engine(fakevllm.Options{Addr: other.Address(), Role: fakevllm.RoleDecode})
	w.clean()
	assert.Len(t, w.published(), 0, "agents that have registered still publish")
}

// An agent with the etcd user of another role may not write its keys, but can report that.
func TestRefusedByEtcd(t *testing.T) {
	t.Parallel()
	w := newDoctorRig(t, etcdtest.Start(t).Endpoint())
	passwords := ""
	for _, user := range []string{"root", "pd-operator", "pd-agent-prefill", "pd-agent-decode", "pd-proxy"} {
		require.NoError(t, os.WriteFile(filepath.Join(w.s.dir, user+".pass"), []byte(user), 0o600))
		passwords += " --password-file " + user + "=" + user + ".pass"
	}
	if code, out := w.run("pdctl auth init --apply" + passwords); code != 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	w.s.env = append(w.s.env, "PD_ETCD_USERNAME=pd-operator", "PD_ETCD_PASSWORD_FILE="+filepath.Join(w.s.dir, "pd-operator.pass"))
	engine := w.engine(fakevllm.Options{Role: fakevllm.RoleDecode}).Address()
	env := func(user string) []string {
		return []string{"PD_ETCD_USERNAME=" + user, "PD_ETCD_PASSWORD_FILE=" + filepath.Join(w.s.dir, user+".pass")}
	}
	wrong := w.agent("d1", env("pd-agent-prefill"), "--role", "decode", "--address", engine)
	w.finds("agent", "decode/"+engine, "denies this user access to these keys", "--etcd-username pd-agent-decode", "pdctl auth init --dry-run")
	assert.NoError(t, wrong.Stop(t.Context()))
	w.agent("d1", env("pd-agent-decode"), "--role", "decode", "--address", engine)
	testkit.Eventually(t, patience, func() error {
		if _, out := w.run("pdctl list"); !strings.Contains(out, "ready") {
			return fmt.Errorf("%s", out)
		}
		for _, f := range func() []doctor.Finding { _, l := w.findings(); return l }() {
			if f.Check == "agent" {
				return fmt.Errorf("still found: %+v", f)
			}
		}
		return nil
	})
}
