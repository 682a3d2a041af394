package pdctl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

const well = `{"v":1,"applied":1000000,"address":"10.0.0.1:8000","documents":["limits","models"],"unverified":{}}`

// examined runs doctor on the rig.
func (r *rig) examined(code int, args ...string) []doctor.Finding {
	r.t.Helper()
	return r.examinedWith(map[string]string{}, code, append(args, "--agents=false")...)
}

// examinedWith runs doctor on the rig with the environment of agentSocket. It omits
// other agents of this user on this machine, which belong to another fleet.
func (r *rig) examinedWith(env map[string]string, code int, args ...string) []doctor.Finding {
	r.t.Helper()
	env["PD_ETCD_ENDPOINTS"] = r.etcd.Endpoint()
	got, out, errs := r.runEnv(env, append([]string{"doctor", "-o", "json"}, args...)...)
	assert.Equal(r.t, code, got, "exit\n%s%s", out, errs)
	var d struct{ Findings []doctor.Finding }
	require.NoError(r.t, json.Unmarshal([]byte(out), &d), "%s%s", out, errs)
	executable(r.t, d.Findings)
	return slices.DeleteFunc(d.Findings, func(f doctor.Finding) bool {
		return f.Check == "agent" && f.Severity == doctor.Note && !strings.Contains(f.Subject, "/10.0.0.9:")
	})
}

// executable checks that a shell can run each command of a finding
// as it is: programs, their flags, and named files exist.
func executable(t *testing.T, list []doctor.Finding) {
	t.Helper()
	for _, f := range list {
		for _, line := range f.Commands {
			out, err := exec.CommandContext(t.Context(), "sh", "-c", `for w in `+line+`; do printf '%s\n' "$w"; done`).Output()
			words := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if err == nil {
				err = parses(words)
			}
			assert.NoError(t, err, "%s %s: %s", f.Check, f.Subject, line)
		}
	}
}

// parses parses a command line as its program does.
func parses(words []string) error {
	switch program, args := words[0], words[1:]; program {
	case "pdctl":
		return pdctl.Parse(args)
	case "pdmesh-agent":
		root := &cobra.Command{}
		root.AddCommand(control.Commands()...)
		cmd, rest, err := root.Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && !cmd.HasParent() {
			err = errors.New("no command")
		}
		return err
	case "openssl":
		_, err := os.Stat(args[slices.Index(args, "-in")+1])
		return err
	case "curl", "etcdctl":
		return nil
	}
	return fmt.Errorf("unknown program")
}

// finds returns the finding of a check about a subject, and fails unless its text and commands contain words.
func finds(t *testing.T, list []doctor.Finding, check, subject string, words ...string) doctor.Finding {
	t.Helper()
	for _, f := range list {
		if f.Check != check || f.Subject != subject {
			continue
		}
		text := f.What + "\n" + f.Why + "\n" + f.Cure + "\n" + strings.Join(f.Commands, "\n")
		for _, w := range words {
			assert.Contains(t, text, w, "%s %s: %q is not in\n%s", check, subject, w, text)
		}
		return f
	}
	t.Errorf("nothing of %s about %s in %+v", check, subject, list)
	return doctor.Finding{}
}

// leased registers an instance as an agent does.
func (r *rig) leased(key, value string) {
	r.t.Helper()
	lease, err := r.cli.Grant(r.t.Context(), 600)
	if err == nil {
		_, err = r.cli.Put(r.t.Context(), key, value, clientv3.WithLease(lease.ID))
	}
	require.NoError(r.t, err)
}

func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leased("/pd/prefill/10.0.0.7:8100", `{"models":["m"],"connector":"nixl","version":"0.33.0","host_id":"h","ports":{"nixl_side_channel":[5600]}}`)
	r.leased("/pd/decode/10.0.0.8:8200", `{"models":["m"],"connector":"nixl","version":"0.33.0","host_id":"h","ports":{"nixl_side_channel":[5601]}}`)
	r.leased("/pd/prefill/10.0.0.9:8100", `{"models":["m"],"connector":"nixl","version":"0.33.0","kv_role":"kv_both"}`)
	r.leased("/pd/decode/10.0.0.9:8100", `{"models":["m"],"connector":"nixl","version":"0.33.0","kv_role":"kv_both"}`)
	r.put("/pd/proxies/p1", well)
	assert.Len(t, r.examined(0), 0)
	assert.Contains(t, r.ok("doctor", "--agents=false"), "Nothing is wrong.")
}

// kv_both is deprecated for NIXL engines of one role; an engine in both roles needs it.
func TestDoctorKVBoth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leased("/pd/prefill/10.0.0.7:8100", `{"models":["m"],"connector":"nixl","version":"0.33.0","kv_role":"kv_both"}`)
	r.leased("/pd/decode/10.0.0.8:8200", `{"models":["m"],"connector":"nixl","version":"0.33.0","kv_role":"kv_both"}`)
	r.leased("/pd/prefill/10.0.0.9:8100", `{"models":["m"],"connector":"nixl","version":"0.33.0","kv_role":"kv_both"}`)
	r.leased("/pd/decode/10.0.0.9:8100", `{"models":["m"],"connector":"nixl","version":"0.33.0","kv_role":"kv_both"}`)
	r.leased("/pd/decode/10.0.0.6:8200", `{"models":["m"],"connector":"plain","kv_role":"kv_both"}`)
	r.put("/pd/proxies/p1", well)
	list := slices.DeleteFunc(r.examined(5), func(f doctor.Finding) bool { return f.Check != "kv_role" })
	for subject, role := range map[string]string{"prefill/10.0.0.7:8100": "kv_producer", "decode/10.0.0.8:8200": "kv_consumer"} {
		f := finds(t, list, "kv_role", subject, "deprecated with NIXL", "vLLM 0.32", `"kv_role":"`+role+`"`)
		assert.Equal(t, doctor.Note, f.Severity, "%+v", f)
	}
	assert.Len(t, list, 2)
}

// The commands that doctor prints for a full etcd repair it.
func TestDoctorNOSPACE(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, etcdtest.WithQuota(4<<20))
	cli := e.Client(t)
	etcdtest.FillUp(t, cli)
	env := map[string]string{"PD_ETCD_ENDPOINTS": e.Endpoint()}
	code, out, errs := execute(t.Context(), env, "doctor", "--agents=false")
	require.Equal(t, 5, code, "exit\n%s%s", out, errs)
	require.True(t, testkit.Contains(t, out, "error  etcd member", "NOSPACE", "compact its history, defragment it, then disarm the alarm", "defrag --cluster", "alarm disarm"))
	if strings.Contains(out, "lease") { // leases are still renewed
		t.Error(out)
	}
	m := regexp.MustCompile(`etcdctl --endpoints ` + e.Endpoint() + ` compact (\d+)`).FindStringSubmatch(out)
	require.True(t, m != nil, "no compact in\n%s", out)
	revision, err := strconv.ParseInt(m[1], 10, 64)
	if err == nil {
		_, err = cli.Compact(t.Context(), revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = cli.Defragment(t.Context(), e.Endpoint())
	}
	if err == nil {
		_, err = cli.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	require.NoError(t, err)
	_, out, _ = execute(t.Context(), env, "doctor", "--agents=false")
	assert.NotContains(t, out, "NOSPACE")
}

// An embedded etcd raises the alarm, too, when its disk is nearly full. Its proxy clears it.
func TestDoctorFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.alarm()
	list := r.examined(5)
	f := finds(t, list, "space", list[0].Subject, "NOSPACE", "far below its quota", "free space there", "disarm")
	assert.NotContains(t, f.Cure, "quota")
	assert.Len(t, f.Commands, 1)
}

// A prefill instance whose notifications do not arrive is a finding with the expected address and a remedy.
func TestDoctorNotifications(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", `{"v":1,"applied":1000000,"address":"10.0.0.1:8000","unverified":{},"notices":["prefill 10.0.0.7:8100 is bypassed: its LMCache notifications do not arrive; they are expected at port 8500 of the agent on 10.0.0.7 (--lmcache-notify)"]}`)
	list := r.examined(5)
	f := finds(t, list, "notification", "prefill/10.0.0.7:8100", "requests bypass it", "expected at port 8500 of the agent on 10.0.0.7 (--lmcache-notify)",
		"reported by 10.0.0.1:8000", "pd_proxy_host and pd_proxy_port", "get prefill/10.0.0.7:8100")
	require.Len(t, list, 1)
	assert.Equal(t, doctor.Warning, f.Severity)
}

func TestDoctorNewerSchema(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/meta/schema", `{"v":2}`)
	finds(t, r.examined(5), "schema", "/pd/meta/schema", "newer version", "upgrade pdctl, and every proxy and agent", "etcdctl --endpoints "+r.etcd.Endpoint()+" get /pd/meta/schema")
}

func TestDoctorRejectedValue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", well)
	r.put("/pd/prefill/10.0.0.1:1", `{"state":"asleep"}`)
	r.leased("/pd/decode/10.0.0.2:1", `{broken`)
	r.put("/pd/decode/10.0.0.3:1", `{"models":["m"],"connector":"teleport"}`)
	r.put("/pd/decode/$(rm -rf x):1", ``)
	r.put("/pd/decode/--force", ``)
	got := r.examined(5)
	at := " --etcd-endpoints " + r.etcd.Endpoint()
	finds(t, got, "rejected", "prefill/10.0.0.1:1", "use starting, ready, draining or down", "remove the instance and add it again", "pdctl remove prefill 10.0.0.1:1"+at, "pdctl add prefill 10.0.0.1:1"+at)
	f := finds(t, got, "rejected", "decode/10.0.0.2:1", "broken JSON", "correct or upgrade that program", "pdctl get decode/10.0.0.2:1")
	assert.NotContains(t, strings.Join(f.Commands, " "), "remove",
		"a leased entry is to be removed: %q", f.Commands)
	finds(t, got, "rejected", "decode/10.0.0.3:1", "unknown connector", "--connector is one of plain, nixl")
	for address, quoted := range map[string]string{"$(rm -rf x):1": "'$(rm -rf x):1'", "--force": "--force"} {
		f := finds(t, got, "rejected", "decode/"+address, "its key is not that of an instance", "pdctl"+at+" remove decode -- "+quoted)
		assert.Len(t, f.Commands, 1, "get and add take no such address")
	}
	r.want(0, "decode/--force: removed\n", "remove", "decode", "--", "--force")
}

// The remedy for a second key of an instance does not remove the instance.
func TestDoctorSecondKeyOfAnInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", well)
	r.leased("/pd/decode/node7:8200", `{"models":["m"]}`)
	r.put("/pd/decode/Node7:8200", `{"models":["m"]}`)
	f := finds(t, r.examined(5), "rejected", "decode/Node7:8200", "another key already names node7:8200", "must name the engine by node7:8200", " del /pd/decode/Node7:8200")
	assert.Len(t, f.Commands, 1, "pdctl remove deletes the key of the instance, too")
}

// agentSocket answers like an agent of this machine; it returns the environment in which the socket is found.
func agentSocket(t *testing.T, name string, report func() agentctl.Report) map[string]string {
	t.Helper()
	run, err := os.MkdirTemp("", "pd") //nolint:usetesting // short enough for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	dir := filepath.Join(run, "pd-agent")
	require.NoError(t, os.Mkdir(dir, 0o700))
	ln, err := agentctl.Listen(t.Context(), filepath.Join(dir, name+".sock"))
	require.NoError(t, err)
	serveAgent(t, ln, agentctl.Source{Report: report})
	return map[string]string{"XDG_RUNTIME_DIR": run}
}

// The agents of this machine are queried concurrently, so that several hung ones take one time limit only.
func TestDoctorQueriesAgentsTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", well)
	const agents = 3
	var all sync.WaitGroup // waits for the queries: none is answered before the last one arrives
	all.Add(agents)
	report := func(i int) func() agentctl.Report {
		await := sync.OnceFunc(func() { all.Done(); all.Wait() })
		return func() agentctl.Report {
			await()
			return agentctl.Report{Role: instance.Decode, Address: fmt.Sprintf("10.0.0.9:820%d", i), Phase: "probing", Registration: agentctl.Registration{Phase: "idle"}}
		}
	}
	env := agentSocket(t, "decode-0", report(0))
	for i := 1; i < agents; i++ {
		ln, err := agentctl.Listen(t.Context(), filepath.Join(env["XDG_RUNTIME_DIR"], "pd-agent", fmt.Sprintf("decode-%d.sock", i)))
		require.NoError(t, err)
		serveAgent(t, ln, agentctl.Source{Report: report(i)})
	}
	silent, err := agentctl.Listen(t.Context(), filepath.Join(env["XDG_RUNTIME_DIR"], "pd-agent", "prefill-10.0.0.9:8100.sock"))
	require.NoError(t, err)
	defer silent.Close() // a stopped process: nothing accepts
	list := r.examinedWith(env, 5)
	finds(t, list, "agent", "agent "+silent.Addr().String(), "does not answer", "Client.Timeout exceeded", "SIGCONT")
	for i := range agents {
		finds(t, list, "agent", fmt.Sprintf("decode/10.0.0.9:820%d", i), "has the phase probing, and its registration the phase idle")
	}
}

// Agents of another fleet on this machine are no problem of this one.
func TestDoctorAgentOfAnotherFleet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", well)
	one := agentctl.Report{
		Role: instance.Decode, Address: "10.0.0.9:8200", Phase: "probing", Reason: "connection refused",
		Registration: agentctl.Registration{Phase: "idle"}, EtcdPrefix: "/pd",
	}
	for _, tc := range []struct {
		etcd, prefix string
		code         int
	}{{"10.9.9.9:2379", "/pd", 0}, {r.etcd.Endpoint(), "/other", 0}, {r.etcd.Endpoint(), "/pd", 5}, {"", "", 5}} {
		one.Etcd, one.EtcdPrefix = []string{tc.etcd}, tc.prefix
		list := r.examinedWith(agentSocket(t, "decode-z", func() agentctl.Report { return one }), tc.code)
		f := finds(t, list, "agent", "decode/10.0.0.9:8200")
		assert.True(t, strings.Contains(f.Cure, "another fleet") == (tc.code == 0), "%+v: %+v", tc, f)
	}
	// A registered agent with a wrong prefix is reported; one that uses another name of the same etcd is not.
	one.Phase, one.Registration = "serving", agentctl.Registration{Phase: string(lease.Registered)}
	one.Etcd, one.EtcdPrefix = []string{r.etcd.Endpoint()}, "/other"
	r.leased("/pd/decode/10.0.0.9:8201", `{"models":["m"],"id":"10.0.0.9:8201"}`)
	for address, noted := range map[string]bool{"10.0.0.9:8200": true, "10.0.0.9:8201": false} {
		one.Address, one.Incarnation = address, address
		list := r.examinedWith(agentSocket(t, "decode-z", func() agentctl.Report { return one }), 0)
		if !noted && len(list) > 0 {
			t.Errorf("%s: %+v", address, list)
		} else if noted {
			finds(t, list, "agent", "decode/"+address, "its agent on this machine is registered in another etcd or prefix: "+r.etcd.Endpoint()+", /other")
		}
	}
	members.Del(t, r.cli, "/pd/decode/10.0.0.9:8201")
	one.Address, one.EtcdPrefix = "10.0.0.9:8200", "/pd"
	one.Registration = agentctl.Registration{Phase: string(lease.Conflict), Reason: "another host holds this key"}
	env := agentSocket(t, "decode-z", func() agentctl.Report { return one })
	finds(t, r.examinedWith(env, 5), "conflict", "decode/10.0.0.9:8200", "another host holds this key", "pdctl get decode/10.0.0.9:8200", "pdmesh-agent drain --role decode --address 10.0.0.9:8200")

	one.Certificates = []string{"the new certificate files for etcd cannot be used, and the old ones stay active: etcd.pem: no such file or directory"}
	finds(t, r.examinedWith(env, 5), "certificate", "decode/10.0.0.9:8200", "etcd.pem: no such file", "the agent reads them again")
}

// Conflicts between two agents are found on any machine, because etcd shows them.
func TestDoctorOneEngineTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", well)
	r.leased("/pd/prefill/node7:8100", `{"models":["m"],"address":"10.0.0.7:8100","host_id":"a"}`)
	r.leased("/pd/prefill/10.0.0.7:8100", `{"models":["m"],"host_id":"a"}`)
	r.leased("/pd/decode/10.0.0.8:8200", `{"models":["m"],"host_id":"a","kv_role":"kv_consumer"}`)
	r.leased("/pd/prefill/10.0.0.8:8200", `{"models":["m"],"host_id":"b","kv_role":"kv_producer"}`)
	r.examined(5)
	r.leased("/pd/decode/10.0.0.9:8200", `{"models":["m"]}`)
	r.put("/pd/decode/node9:8200", `{"models":["m"],"address":"10.0.0.9:8200"}`)
	// A record with the address of another instance does not lead to that instance's removal.
	r.put("/pd/decode/zone-a:8300", `{"models":["m"]}`)
	r.leased("/pd/decode/liar:8300", `{"models":["m"],"address":"zone-a:8300"}`)
	got := r.examined(5)
	noRemoval := func(f doctor.Finding) {
		t.Helper()
		assert.NotContains(t, strings.Join(f.Commands, " "), "remove", "%q", f.Commands)
	}
	noRemoval(finds(t, got, "conflict", "prefill/10.0.0.7:8100", "stop one of the two agents", "pdctl get prefill/10.0.0.7:8100", "pdctl get prefill/node7:8100"))
	finds(t, got, "conflict", "decode/10.0.0.9:8200", "pdctl remove decode node9:8200")
	noRemoval(finds(t, got, "conflict", "decode/zone-a:8300", "pdctl get decode/liar:8300"))
	finds(t, got, "conflict", "10.0.0.8:8200", "two agents on different machines", "stop one of the two agents", "pdctl get decode/10.0.0.8:8200")
}

// An engine can also be registered twice under two names of its machine.
func TestDoctorOneEngineUnderTwoNames(t *testing.T) {
	t.Parallel()
	const started, later, bridge = "2026-11-26T10:00:00.12Z", "2026-11-26T10:00:00.13Z", "a/zmq:36367"
	for name, tc := range map[string]struct {
		address string
		hosts   [2]string
		started string
		twice   bool
	}{
		"same":               {"vm:8200", [2]string{"a", "a"}, started, true},
		"different start":    {"vm:8200", [2]string{"a", "a"}, later, false},
		"different port":     {"vm:8201", [2]string{"a", "a"}, started, false},
		"different machines": {"vm:8200", [2]string{"a", "b"}, started, false},
		"unknown machines":   {"vm:8200", [2]string{}, started, false},
		"one bridge":         {"vm:8200", [2]string{bridge, bridge}, started, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("/pd/proxies/p1", well)
			ports := ""
			if tc.twice { // two engines cannot have the same port
				ports = `,"ports":{"nixl_side_channel":[5600]}`
			}
			record := func(host, started string) string {
				return fmt.Sprintf(`{"models":["m"],"connector":"nixl","kv_role":"kv_both","version":"0.33.0","host_id":%q,"started_at":%q%s}`, host, started, ports)
			}
			for _, role := range instance.Roles() {
				r.leased(fmt.Sprintf("/pd/%s/10.0.0.1:8200", role), record(tc.hosts[0], started))
				r.leased(fmt.Sprintf("/pd/%s/%s", role, tc.address), record(tc.hosts[1], tc.started))
			}
			if !tc.twice {
				assert.Len(t, r.examined(0), 0)
				return
			}
			got := r.examined(5)
			for _, role := range instance.Roles() {
				at := string(role) + "/10.0.0.1:8200"
				finds(t, got, "conflict", at, "one engine is registered 2 times: "+at, "pdctl get "+string(role)+"/vm:8200")
			}
			assert.Len(t, got, 2)
		})
	}
}

func TestDoctorPairs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, prefill, decode string
		words                 []string
	}{
		{
			"two builds", `{"models":["m"],"connector":"nixl","version":"0.32.0"}`, `{"models":["m"],"connector":"nixl","version":"0.33.0"}`,
			[]string{"only engines of one vLLM build, and these are 0.32.0 and 0.33.0", "run the same vLLM build in both roles", "pdctl list"},
		},
		{
			"blocks", `{"models":["m"],"connector":"p2p","ports":{"p2p":[7777]},"block_size":16}`, `{"models":["m"],"connector":"p2p","block_size":32}`,
			[]string{"blocks of 16 tokens and of 32 (decode/10.0.0.8:8200)", "the same --block-size"},
		},
		{
			"connectors", `{"models":["m"],"connector":"nixl"}`, `{"models":["m"]}`,
			[]string{"prefill speaks nixl, decode plain", "same connector (--kv-transfer-config)"},
		},
		{
			"modes", `{"models":["m"],"connector":"moriio","transfer_mode":"READ","version":"0.33.0","tp_size":1,"dp_size":1,"zmq_address":"host:10.0.0.7,handshake:6301,notify:61005"}`,
			`{"models":["m"],"connector":"moriio","transfer_mode":"WRITE","version":"0.33.0","tp_size":1,"dp_size":1,"zmq_address":"host:10.0.0.8,handshake:6301,notify:61005"}`,
			[]string{"(mode READ)", "(mode WRITE)", "same transfer mode"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("/pd/proxies/p1", well)
			r.leased("/pd/prefill/10.0.0.7:8100", tc.prefill)
			r.leased("/pd/decode/10.0.0.8:8200", tc.decode)
			got := r.examined(5)
			assert.Equal(t, doctor.Error, finds(t, got, "pair", "prefill/10.0.0.7:8100", tc.words...).Severity,
				"severity: there is no pair at all")
			finds(t, got, "pair", "decode/10.0.0.8:8200")
		})
	}
}

// Only instances that serve the same model are paired, and the reason names only such instances.
func TestDoctorPairsOfAModel(t *testing.T) {
	t.Parallel()
	type records map[string][]string // key: connector, version, models
	for _, tc := range []struct {
		name     string
		records  records
		severity doctor.Severity
		want     map[string][]string // subject: texts
	}{
		{
			"the connectors of another model", records{
				"prefill/x:1": {"nixl", "0.33.0", "m-x"}, "decode/x:2": {"nixl_push", "0.33.0", "m-x"},
				"prefill/y:1": {"nixl_push", "0.33.0", "m-y"}, "decode/y:2": {"nixl", "0.33.0", "m-y"},
			}, doctor.Error, map[string][]string{
				"prefill/x:1": {"no decode instance with model m-x can be paired with prefill/x:1\nprefill speaks nixl, decode nixl_push\n"}, "decode/x:2": nil,
				"prefill/y:1": nil, "decode/y:2": {"no prefill instance with model m-y can be paired with decode/y:2\ndecode speaks nixl, prefill nixl_push\n"},
			},
		},
		{
			"the same with a name in common", records{
				"prefill/x:1": {"nixl", "0.33.0", "m-x", "chat"}, "decode/x:2": {"nixl_push", "0.33.0", "m-x", "chat"},
				"prefill/y:1": {"nixl_push", "0.33.0", "m-y", "chat"}, "decode/y:2": {"nixl", "0.33.0", "m-y", "chat"},
			}, doctor.Warning, map[string][]string{"prefill/x:1": {"model m-x"}, "decode/x:2": {"model m-x"}, "prefill/y:1": {"model m-y"}, "decode/y:2": {"model m-y"}},
		},
		{
			"the builds of other models", records{
				"prefill/a:1": {"nixl", "0.33.0", "a"}, "decode/a:2": {"nixl", "0.33.0", "a"}, "prefill/b:1": {"nixl", "0.33.0", "b", "lora"}, "prefill/b:3": {"nixl", "0.33.0", "b"},
				"decode/b:2": {"nixl", "0.32.0", "b", "lora"}, "prefill/c:1": {"nixl", "0.32.0", "c"}, "decode/c:2": {"nixl", "0.32.0", "c"},
			}, doctor.Warning, map[string][]string{
				"prefill/b:1": {"can be paired with prefill/b:1, prefill/b:3\n", "these are 0.33.0 and 0.32.0 (decode/b:2)"},
				"decode/b:2":  {"these are 0.32.0 and 0.33.0 (prefill/b:1, prefill/b:3)"},
			},
		},
		{"a model of one role", records{"prefill/a:1": {"nixl", "0.32.0", "a"}, "decode/a:2": {"nixl", "0.32.0", "a"}, "decode/b:2": {"nixl", "0.33.0", "b"}}, "", nil},
		{"no model in common", records{"prefill/a:1": {"nixl", "0.32.0", "a"}, "decode/b:2": {"nixl", "0.33.0", "b"}}, "", nil},
		{"unknown models, one partner", records{"prefill/a:1": {"nixl", "0.32.0"}, "decode/a:2": {"nixl", "0.32.0", "a"}, "decode/b:2": {"nixl", "0.32.0"}}, "", nil},
		{
			"unknown models", records{"prefill/a:1": {"nixl", "0.32.0"}, "decode/a:2": {"nixl", "0.33.0", "a"}}, doctor.Error,
			map[string][]string{"prefill/a:1": {"no decode instance can be paired with prefill/a:1\n"}, "decode/a:2": {"no prefill instance with model a can be paired"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("/pd/proxies/p1", well)
			for key, of := range tc.records {
				rec, err := json.Marshal(instance.Record{Connector: of[0], Version: of[1], Models: of[2:]})
				require.NoError(t, err)
				r.leased("/pd/"+key, string(rec))
			}
			code := 5
			if tc.want == nil {
				code = 0
			}
			got := slices.DeleteFunc(r.examined(code), func(f doctor.Finding) bool { return f.Check != "pair" })
			for subject, words := range tc.want {
				assert.Equal(t, tc.severity, finds(t, got, "pair", subject, words...).Severity, "%s: severity", subject)
			}
			assert.Equal(t, len(tc.want), len(got), got)
		})
	}
}

func TestDoctorWrongModel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// The reason has the wording of a proxy with --model.
	layout := members.Layout(t)
	elsewhere := startEngine(t, "llama")
	r.put("/pd/decode/"+elsewhere, `{"models":["llama"]}`)
	kvs, err := r.cli.Get(t.Context(), "/pd/", clientv3.WithPrefix())
	require.NoError(t, err)
	in, _ := watch.Build(layout, kvs.Kvs, kvs.Header.Revision, verify.Facts{Model: "qwen"}).Lookup(instance.Key{Role: instance.Decode, Address: elsewhere})
	presence, err := json.Marshal(map[string]any{"v": 1, "applied": 1000000, "address": "10.0.0.1:8000", "unverified": map[string]string{"decode/" + elsewhere: in.Reason, "-h": in.Reason, "decode/gone:1": in.Reason}})
	require.NoError(t, err)
	r.put("/pd/proxies/p1", string(presence))
	engine := startEngine(t, "mistral")
	r.put("/pd/prefill/"+engine, `{"models":["qwen"]}`)
	env := agentSocket(t, "decode-y", func() agentctl.Report {
		return agentctl.Report{Role: instance.Decode, Address: "10.0.0.9:8200", Phase: "probing", Reason: "the engine serves llama, not qwen: start it with that model or change --model", Registration: agentctl.Registration{Phase: "idle"}}
	})
	list := r.examinedWith(env, 5, "--probe", "--timeout", "2s")
	const cure = "start the engine with the right model"
	finds(t, list, "model", "decode/"+elsewhere, "serves llama, not qwen", cure, "pdctl get decode/"+elsewhere)
	finds(t, list, "model", "decode/10.0.0.9:8200", "agent on this machine", cure, "pdmesh-agent status --role decode --address 10.0.0.9:8200")
	finds(t, list, "model", "prefill/"+engine, "serves mistral, not qwen", cure)
	assert.Len(t, list, 3, "no finding about an agent that is not registered")
}

func TestDoctorDeadEngines(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stopped, quiet := testkit.FreePort(t), "10.0.0.9:8200"
	r.leased("/pd/decode/10.0.0.8:8200", `{"models":["m"],"state":"down"}`)
	r.leased("/pd/decode/10.0.0.7:8200", `{"models":["m"],"state":"down","cause":"slow"}`)
	r.leased("/pd/decode/10.0.0.4:8200", `{"models":["m"],"state":"down","cause":"HTTP 401"}`)
	r.leased("/pd/decode/10.0.0.3:8200", `{"models":["m"],"state":"down","cause":"no TLS"}`)
	r.leased("/pd/prefill/10.0.0.6:8100", `{"models":["x"],"connector":"mooncake","state":"starting","cause":"no engine ids"}`)
	r.leased("/pd/prefill/10.0.0.5:8100", `{"models":["x"],"connector":"mooncake","state":"starting"}`)
	r.put("/pd/decode/"+stopped, `{"models":["m"]}`)
	r.put("/pd/decode/"+quiet, "")
	r.put("/pd/proxies/p1", `{"v":1,"applied":1000000,"address":"10.0.0.1:8000","unverified":{"decode/`+quiet+`":"no answer yet: connection refused"}}`)
	got := r.examined(5)
	finds(t, got, "engine", "decode/10.0.0.8:8200", "its engine is dead, and its agent is alive", "restart the engine on 10.0.0.8", "the agent registers it again by itself, without a restart", "curl -i http://10.0.0.8:8200/health")
	finds(t, got, "engine", "decode/10.0.0.7:8200", "down (slow)", "restart the engine on 10.0.0.7")
	finds(t, got, "engine", "decode/10.0.0.4:8200", "its agent cannot use its engine", "down: HTTP 401", "correct --engine-api-key of its agent on 10.0.0.4")
	finds(t, got, "engine", "decode/10.0.0.3:8200", "its agent cannot use its engine", "down: no TLS", "correct --engine-ca, --engine-cert and --engine-key of its agent on 10.0.0.3, or the certificate of the engine")
	finds(t, got, "engine", "decode/"+quiet, "1 of 1 proxies cannot use it", "connection refused", "reach its address")
	f := finds(t, got, "engine", "prefill/10.0.0.6:8100", "its bootstrap server 10.0.0.6:8998 does not return engine ids", "--bootstrap-port", "curl -i http://10.0.0.6:8998/query")
	assert.Equal(t, doctor.Warning, f.Severity, "severity %s", f.Severity)
	for _, f := range got {
		assert.False(t, f.Check == "engine" && f.Subject == "prefill/10.0.0.5:8100",
			"an engine that is starting: %+v", f)
		assert.NotEqual(t, "decode/"+stopped, f.Subject, "asked without --probe: %+v", f)
	}
	for _, a := range []string{quiet, "10.0.0.8:8200", "10.0.0.7:8200", "10.0.0.4:8200", "10.0.0.3:8200"} { // tests do not probe other machines
		members.Del(t, r.cli, "/pd/decode/"+a)
	}
	finds(t, r.examined(5, "--probe", "--timeout", "500ms"), "engine", "decode/"+stopped, "does not answer /health from here", "connection refused", "pdctl remove decode "+stopped)
}

// An engine that was not probed before the time limit of all probes is not reported as dead.
func TestDoctorProbesEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", strings.ReplaceAll(well, "10.0.0.1:8000", testkit.FreePort(t)))
	for range 192 { // 12 rounds of probes; the time limit allows 10
		ln := testkit.Listen(t) // accepts nothing
		r.put("/pd/prefill/"+ln.Addr().String(), `{}`)
	}
	healthy := startEngine(t, "m")
	r.put("/pd/decode/"+healthy, `{}`)
	unseen, silent := 0, 0
	for _, f := range r.examined(5, "--probe", "--timeout", "200ms") {
		switch {
		case f.Subject == "decode/"+healthy:
			t.Errorf("a healthy engine: %+v", f)
		case f.Check == "unseen" && f.Subject == "engines":
			unseen++
			finds(t, []doctor.Finding{f}, "unseen", "engines", "set a longer --timeout")
			assert.NotContains(t, f.Cure, "etcd", "the cure of another problem: %+v", f)
		case strings.Contains(f.What, "does not answer /health"):
			silent++
		}
	}
	assert.True(t, unseen == 1 && silent != 0, "%d unseen, %d engines without an answer", unseen, silent)
}

func TestDoctorStaleProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.8:8200", `{"models":["m"]}`)
	r.put("/pd/limits/team-a", `{"v":1,"rpm":60}`)
	r.put("/pd/proxies/behind", `{"v":1,"applied":1,"address":"10.0.0.1:8000","unverified":{}}`)
	r.put("/pd/proxies/older", `{"v":1,"applied":2,"address":"10.0.0.4:8000","unverified":{}}`)
	r.put("/pd/proxies/stuck", `{"v":1,"applied":2,"address":"10.0.0.6:8000","documents":["limits","models"],"unverified":{}}`)
	r.put("/pd/proxies/silent", strings.ReplaceAll(well, "10.0.0.1", "10.0.0.2"))
	r.put("/pd/load/silent", `{"v":1,"applied":9,"load":{"decode/10.0.0.8:8200":{"in_flight":3}},"at":"2020-01-01T00:00:00Z"}`)
	r.put("/pd/proxies/ahead", strings.ReplaceAll(well, "10.0.0.1", "10.0.0.5"))
	r.put("/pd/load/ahead", `{"v":1,"applied":9,"load":{"decode/10.0.0.8:8200":{"in_flight":3}},"at":"2120-01-01T00:00:00Z"}`)
	r.put("/pd/proxies/idle", strings.ReplaceAll(well, "10.0.0.1", "10.0.0.3"))
	r.put("/pd/load/idle", `{"v":1,"applied":9,"load":{},"at":"2020-01-01T00:00:00Z"}`)
	r.put("/pd/proxies/passed", `{"v":1,"applied":1000000,"address":"10.0.0.7:8000","unverified":{}}`)
	r.put("/pd/proxies/knows", `{"v":1,"applied":3,"address":"10.0.0.3:8000","unverified":{}}`)
	got := r.examined(5)
	finds(t, got, "proxy", "proxy 10.0.0.1:8000", "it is stale", "applied revision 1 ", "restart this proxy", "pdctl status", "pdctl wait --revision 3 --timeout 30s")
	finds(t, got, "proxy", "proxy 10.0.0.6:8000", "it is stale", "applied revision 2 ")
	for _, address := range []string{"10.0.0.2:8000", "10.0.0.5:8000"} { // the clock of the second one is ahead
		finds(t, got, "proxy", "proxy "+address, "was not renewed", "not stopped", "restart this proxy")
	}
	for _, address := range []string{"10.0.0.4:8000", "10.0.0.7:8000"} { // the second one has applied a later change of an instance
		f := finds(t, got, "proxy", "proxy "+address, "limits or model routes", "older release", "update this proxy")
		assert.Equal(t, doctor.Warning, f.Severity)
	}
	for _, f := range got {
		assert.NotContains(t, f.Subject, "10.0.0.3", "a proxy that has applied a limit, and has nothing in flight: %+v", f)
	}
}

// An ejected instance is a finding with a command that shows the
// reason. If one etcd member of several is down, that is a warning.
func TestDoctorEjectedAndMemberDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.8:8200", `{"models":["m"]}`)
	r.put("/pd/decode/10.0.0.9:8200", `{"models":["m"]}`)
	r.put("/pd/decode/10.0.0.10:8200", `{"models":["m"]}`)
	const dead = `{"view":"ejected","reason":"connection refused"}`
	r.put("/pd/proxies/p1", `{"v":1,"applied":99,"address":"10.0.0.1:8000","unverified":{},"instances":{"decode/10.0.0.8:8200":`+dead+`,"decode/10.0.0.9:8200":`+dead+`,"decode/10.0.0.10:8200":{"view":"ejected","reason":"no TLS: it requires a client certificate"}}}`)
	r.put("/pd/proxies/p2", `{"v":1,"applied":99,"address":"10.0.0.2:8000","unverified":{},"instances":{"decode/10.0.0.8:8200":`+dead+`}}`)
	away := testkit.FreePort(t)
	got := r.examined(5, "--etcd-endpoints", r.etcd.Endpoint()+","+away, "--timeout", "2s")
	f := finds(t, got, "engine", "decode/10.0.0.8:8200", "2 of 2 proxies cannot use it: ejected", "connection refused", "pdctl get decode/10.0.0.8:8200", "pdctl remove decode 10.0.0.8:8200", "if the engine will not return, remove the instance")
	assert.Equal(t, doctor.Error, f.Severity)
	f = finds(t, got, "engine", "decode/10.0.0.9:8200", "1 of 2 proxies cannot use it: ejected")
	assert.Equal(t, doctor.Warning, f.Severity, "severity %s", f.Severity)
	finds(t, got, "engine", "decode/10.0.0.10:8200", "1 of 2 proxies cannot use it: ejected", "it requires a client certificate", "correct --engine-ca, --engine-cert")
	f = finds(t, got, "etcd", "etcd "+away, "a member of etcd does not answer; the others work")
	assert.Equal(t, doctor.Warning, f.Severity, "severity %s", f.Severity)
	testkit.Contains(t, r.ok("get", "decode/10.0.0.8:8200"), "ejected", "connection refused")
}

// A cluster without a quorum is not reported as stopped or as having another address.
func TestDoctor_NoQuorum(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3)
	c.Members[0].Kill()
	c.Members[1].Kill()
	testkit.Eventually(t, patience, func() error { // until the last member has noticed it
		code, out, _ := execute(t.Context(), nil, "doctor", "--agents=false", "--etcd-endpoints", strings.Join(c.Endpoints(), ","))
		for _, text := range []string{"etcd has no leader", c.Members[2].Endpoint() + " has no leader", "bring members back"} {
			if code != 1 || !strings.Contains(out, text) {
				return fmt.Errorf("exit %d, want 1, and %q in\n%s", code, text, out)
			}
		}
		return nil
	})
	// A member that cannot reach the others is only a warning. Here, another etcd answers in their place.
	others, member := etcdtest.Start(t).Endpoint(), c.Members[2].Endpoint()
	testkit.Eventually(t, patience, func() error { // until pdctl connects to the others first
		_, out, _ := execute(t.Context(), nil, "doctor", "--agents=false", "-o", "json", "--etcd-endpoints", others+","+member)
		var d struct{ Findings []doctor.Finding }
		err := json.Unmarshal([]byte(out), &d)
		i := slices.IndexFunc(d.Findings, func(f doctor.Finding) bool { return f.Subject == "etcd "+member })
		if err != nil || i < 0 || d.Findings[i].What != "it has no leader; the others work" || d.Findings[i].Severity != doctor.Warning {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
}

// A proxy that catches up between two polls is no finding.
func TestDoctor_ProxyCatchesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.8:8200", `{"models":["m"]}`)
	r.put("/pd/proxies/p1", strings.ReplaceAll(well, "1000000", "1"))
	out, stop := r.background("doctor", "--agents=false")
	r.put("/pd/proxies/p1", well)
	assert.Equal(t, 0, stop(false), "exit\n%s", out)
}

func TestDoctorCertificates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", `{"v":1,"applied":1000000,"address":"10.0.0.1:8000","unverified":{},"notices":["the certificate for clients has expired at 2026-01-01T00:00:00Z","4 prefill instances are unused"]}`)
	r.put("/pd/proxies/p2", `{"v":1,"applied":1000000,"address":"10.0.0.2:8000","unverified":{},"notices":["the certificate for etcd is not valid before 2036-01-01T00:00:00Z: etcd.pem"]}`)
	r.put("/pd/proxies/p3", `{"v":1,"applied":1000000,"address":"10.0.0.3:8000","unverified":{},"notices":["the new certificate files for engines cannot be used, and the old ones stay active: ca.pem: unusable: the new CA certificate has expired at 2026-01-01T00:00:00Z"]}`)
	got := r.examined(5)
	finds(t, got, "certificate", "proxy 10.0.0.2:8000", "for etcd is not valid before", "the clock of that machine")
	finds(t, got, "certificate", "proxy 10.0.0.3:8000", "for engines cannot be used", "are not valid now")
	finds(t, got, "certificate", "proxy 10.0.0.1:8000", "has expired at", "write new files over the old ones", "without a restart")
	finds(t, got, "notice", "fleet", "4 prefill instances are unused", "reported by 10.0.0.1:8000", "pdctl list")

	ca := testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue("server", testkit.Certificate{CN: "etcd", Hosts: []string{"127.0.0.1"}})
	e := etcdtest.Start(t, etcdtest.WithTLS(cert, key, ca.CA))
	old, oldKey := ca.Issue("old", testkit.Certificate{CN: "operator", From: -2 * time.Hour, Until: -time.Hour})
	code, out, errs := execute(t.Context(), nil, "doctor", "--agents=false", "--etcd-endpoints", "https://"+e.Endpoint(), "--etcd-ca", ca.CA, "--etcd-cert", old, "--etcd-key", oldKey, "--timeout", "2s")
	if code != 1 || !strings.Contains(out, "this pdctl: the certificate for etcd has expired at") || !strings.Contains(out, "get a new certificate") || !strings.Contains(out, "openssl x509 -noout -subject -enddate -in "+old) {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, out, errs = execute(t.Context(), nil, "doctor", "--agents=false", "--etcd-endpoints", "https://"+e.Endpoint(), "--etcd-ca", old, "--timeout", "2s")
	if code != 1 || !strings.Contains(out, "this pdctl: the CA certificate for etcd has expired at") || !strings.Contains(out, "set its files with --etcd-ca (") || !strings.Contains(out, "-in "+old) {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestDoctorOneSideChannelPortTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/p1", well)
	record := `{"models":["m"],"connector":"nixl","version":"0.33.0","host_id":"%s","ports":{"nixl_side_channel":[%d,%d]}}`
	r.leased("/pd/prefill/10.0.0.7:8100", fmt.Sprintf(record, "h", 5600, 5601))
	r.leased("/pd/decode/10.0.0.7:8200", fmt.Sprintf(record, "h", 5601, 5602))
	r.leased("/pd/decode/10.0.0.8:8200", fmt.Sprintf(record, "other", 5600, 5601))
	got := r.examined(5)
	finds(t, got, "ports", "decode/10.0.0.7:8200", "port 5601", "prefill/10.0.0.7:8100 (nixl_side_channel)", "different port for each engine with VLLM_NIXL_SIDE_CHANNEL_PORT", "pdctl get decode/10.0.0.7:8200")
	for _, f := range got {
		assert.NotContains(t, f.What, "10.0.0.8", "another machine: %+v", f)
	}
}

func TestDoctor_CannotReadEtcd(t *testing.T) {
	t.Parallel()
	code, out, errs := execute(t.Context(), map[string]string{"PD_ETCD_ENDPOINTS": testkit.FreePort(t)}, "doctor", "--agents=false", "--timeout", "500ms")
	if code != 1 || !strings.Contains(out, "etcd does not answer") || strings.Contains(out, `\n`) || !strings.Contains(errs, "connection refused") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	r := newRig(t)
	etcdtest.EnableAuth(t, r.cli, "reader", "secret", "/other/")
	for _, args := range [][]string{nil, {"--etcd-username", "reader", "--etcd-password", "secret"}, {"--etcd-username", "reader", "--etcd-password", "wrong"}} {
		code, out, errs := r.run(append([]string{"doctor", "--agents=false"}, args...)...)
		if code != 1 || !strings.Contains(out, "etcd refuses this user") || !strings.Contains(out, "--etcd-username pd-operator") || !strings.Contains(out, "pdctl auth init --dry-run") {
			t.Errorf("%q: exit %d\n%s%s", args, code, out, errs)
		}
		assert.NotContains(t, out, "secret")
	}
}

func serveAgent(t *testing.T, ln net.Listener, src agentctl.Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log := logrus.New()
	log.SetOutput(io.Discard)
	done := make(chan struct{})
	go func() { defer close(done); agentctl.Serve(ctx, ln, src, log) }()
	t.Cleanup(func() { cancel(); <-done })
}

// Each proxy has measured some of the requests.
func TestDoctorSlow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 4 {
		r.leased(fmt.Sprintf("/pd/decode/10.0.0.%d:8200", i), `{"models":["m"],"connector":"plain"}`)
	}
	status := `{"id":%q,"instances":[{"role":"decode","address":"10.0.0.0:8200","load":{"pace":{"samples":6,"seconds":0.9,"work":6}}}`
	for i := range 3 {
		status += fmt.Sprintf(`,{"role":"decode","address":"10.0.0.%d:8200","load":{"pace":{"samples":20,"seconds":0.3,"work":20}}}`, i+1)
	}
	for _, id := range []string{"p1", "p2"} {
		if list := r.examined(0); slices.ContainsFunc(list, func(f doctor.Finding) bool { return f.Check == "slow" }) {
			t.Errorf("of few requests: %+v", list)
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/status" {
				fmt.Fprintf(w, status+"]}", id)
			}
		}))
		t.Cleanup(srv.Close)
		r.put("/pd/proxies/"+id, strings.Replace(well, "10.0.0.1:8000", strings.TrimPrefix(srv.URL, "http://"), 1))
	}
	list := r.examined(5)
	f := finds(t, list, "slow", "decode/10.0.0.0:8200", "10.0 times slower than its peers: 150 ms for a token, theirs is 15 ms", "about the last 12 requests", "median of 3 other decode instances",
		"top --once --sort-by per-token --selector role=decode", "weight decode 10.0.0.0:8200 10 ")
	require.Len(t, list, 1)
	assert.Equal(t, doctor.Warning, f.Severity)
	ca := testkit.NewAuthority(t, "fleet").CA
	finds(t, r.examined(5, "--proxy-ca", ca), "slow", "decode/10.0.0.0:8200", "--proxy-ca "+ca)
	closed := testkit.FreePort(t)
	r.put("/pd/proxies/p3", strings.Replace(well, "10.0.0.1:8000", closed, 1))
	f = finds(t, r.examined(5), "unseen", "how fast instances are", "1 of 3 proxies", closed, "connection refused", "--proxy-ca")
	assert.Equal(t, doctor.Note, f.Severity)
	assert.NotContains(t, f.Cure, "etcd user")
	members.Del(t, r.cli, "/pd/proxies/p3")
	r.ok("cordon", "decode", "10.0.0.0:8200")
	list = r.examined(0)
	assert.Empty(t, list, "cordoned: %+v", list)
}
