package cli_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// runCommands runs the commands of a finding unchanged.
func (w *doctorRig) runCommands(f doctor.Finding) {
	w.t.Helper()
	for _, line := range f.Commands {
		code, out := w.run(line)
		assert.Equal(w.t, 0, code, "%s: exit %d\n%s", line, code, out)
	}
}

// Each cause is real: a program that was killed, stopped or started with wrong settings. Doctor finds it,
// its commands are run as printed, and then doctor finds nothing.
func TestDoctor_FixesWork(t *testing.T) {
	t.Parallel()
	needsCurl(t)
	w := newDoctorRig(t, etcdtest.Start(t).Endpoint())
	proxy := fleet.ProxySpec{Name: "proxy", EtcdEndpoints: []string{w.etcd}, Args: []string{"--connector", "nixl"}}
	if _, err := w.f.StartProxy(t.Context(), proxy); err != nil {
		t.Fatal(err)
	}
	prefill := w.engine(fakevllm.Options{Role: fakevllm.RolePrefill}).Address()
	w.agent("p1", nil, "--role", "prefill", "--address", prefill)
	spec := fleet.NodeSpec{
		Name: "d1", Role: instance.Decode, Connector: "nixl", Model: modelName, EngineArgs: []string{"--vllm-version", "0.32.0"},
		AgentArgs: []string{"--host-id", "d1", "--probe-interval", "500ms", "--ttl", "5s"}, Etcd: []string{w.etcd},
	}
	node, err := w.f.StartNode(t.Context(), spec)
	require.NoError(t, err)
	decode := "decode/" + node.Address
	w.clean()
	// again restarts the engine of the node on its port.
	again := func(version string) {
		t.Helper()
		s := node.Spec
		s.Etcd, s.EngineArgs = nil, []string{"--vllm-version", version}
		next, err := w.f.StartNode(t.Context(), s)
		require.NoError(t, err)
		node.Engine = next.Engine
	}
	for _, cause := range []struct {
		name string
		run  func(w *doctorRig)
	}{
		{"dead engine with a live agent", func(w *doctorRig) {
			require.NoError(w.t, node.Engine.Kill())
			f := w.finds("engine", decode, "its engine is dead, and its agent is alive", "restart the engine on 127.0.0.1", "the agent registers it again by itself, without a restart")
			if code, _ := w.run(f.Commands[0]); code != 7 {
				w.t.Errorf("%s: exit %d, want 7 (refused)", f.Commands[0], code)
			}
			again("0.32.0")
			w.runCommands(f)
		}},
		{"pair of two builds", func(w *doctorRig) {
			require.NoError(w.t, node.Engine.Kill())
			again("0.33.0")
			f := w.finds("pair", decode, "these are 0.33.0 and 0.32.0", "run the same vLLM build in both roles")
			w.runCommands(f)
			require.NoError(w.t, node.Engine.Kill())
			again("0.32.0")
		}},
		{"rejected value", func(w *doctorRig) {
			at := w.engine(fakevllm.Options{Role: fakevllm.RoleDecode}).Address()
			if _, err := w.cli.Put(w.t.Context(), "/pd/decode/"+at, `{"models":["`+modelName+`"],"state":"asleep"}`); err != nil {
				w.t.Fatal(err)
			}
			w.runCommands(w.finds("rejected", "decode/"+at, "its value in etcd is rejected", "pdctl remove decode "+at, "pdctl add decode "+at))
			w.clean()
			code, out := w.run("pdctl remove decode " + at)
			assert.Equal(w.t, 0, code, out)
		}},
		{"two agents on one address", func(w *doctorRig) {
			dir := w.t.TempDir()
			w.agent("taker", []string{"XDG_RUNTIME_DIR=" + dir}, "--role", "decode", "--address", node.Address)
			f := w.finds("conflict", decode, "two agents claim this address", "stop one of the two agents")
			w.runCommands(f)
			there := regexp.MustCompile(`\(on \S+: (pdmesh-agent drain .*)\)$`).FindStringSubmatch(f.Cure)
			require.True(w.t, there != nil, "no command in %q", f.Cure)
			if code, out := w.run("XDG_RUNTIME_DIR=" + dir + " " + there[1]); code != 0 {
				w.t.Errorf("%s: exit %d\n%s", there[1], code, out)
			}
		}},
		{"stale proxy", func(w *doctorRig) {
			p2 := proxy
			p2.Name = "proxy-2"
			p, err := w.f.StartProxy(w.t.Context(), p2)
			require.NoError(w.t, err)
			w.clean()
			require.NoError(w.t, p.Signal(syscall.SIGSTOP))
			code, out := w.run("pdctl weight decode " + node.Address + " 100")
			assert.Equal(w.t, 0, code, out)
			f := w.finds("proxy", "proxy "+p.Address, "it is stale: it has applied revision", "check that its machine reaches etcd, and that its process runs (not stopped)", "pdctl wait --revision")
			require.NoError(w.t, p.Signal(syscall.SIGCONT))
			w.runCommands(f)
			w.clean()
			assert.NoError(w.t, p.Stop(w.t.Context()))
		}},
		{"one side-channel port twice", (*doctorRig).onePortTwice},
		{"expired certificate", (*doctorRig).expired},
	} {
		t.Run(cause.name, func(t *testing.T) {
			x := *w
			x.t, x.s.t = t, t
			cause.run(&x)
			x.clean()
			x.s.t = w.t
		})
	}
}

// onePortTwice starts two engines by agents that were configured with the same side-channel port.
func (w *doctorRig) onePortTwice() {
	script := "#!/bin/sh\n# serve MODEL --host HOST --port PORT --kv-transfer-config JSON\n" +
		"exec " + filepath.Join(binDir, "fakevllm") + ` --model "$2" --host "$4" --port "$6" --mode nixl --role decode --vllm-version 0.32.0` + "\n"
	vllm := filepath.Join(w.t.TempDir(), "vllm")
	require.NoError(w.t, os.WriteFile(vllm, []byte(script), 0o700))
	ports, err := fleet.FreePorts(4)
	require.NoError(w.t, err)
	start := func(name string, port, side int) *fleet.Process {
		p := w.agent(name, []string{fmt.Sprintf("VLLM_NIXL_SIDE_CHANNEL_PORT=%d", side)}, "--host-id", "one machine", "--role", "decode", "--",
			vllm, "serve", modelName, "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}`)
		testkit.Eventually(w.t, patience, func() error {
			if _, out := w.run("pdctl list decode"); !strings.Contains(out, fmt.Sprint(port)) {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		return p
	}
	first := start("s1", ports[0], ports[2])
	second := start("s2", ports[1], ports[2])
	a, b := net.JoinHostPort("127.0.0.1", fmt.Sprint(ports[0])), net.JoinHostPort("127.0.0.1", fmt.Sprint(ports[1]))
	var f doctor.Finding
	testkit.Eventually(w.t, patience, func() error {
		_, list := w.findings()
		for _, f = range list {
			if f.Check == "ports" {
				return nil
			}
		}
		return fmt.Errorf("%+v", list)
	})
	require.True(w.t, testkit.Contains(w.t, f.What+f.Cure, fmt.Sprintf("port %d is the side channel of 2 engines", ports[2]), a, b, "VLLM_NIXL_SIDE_CHANNEL_PORT"))
	w.runCommands(f)
	assert.NoError(w.t, second.Stop(w.t.Context()))
	second = start("s2", ports[1], ports[3]) // another port
	w.clean()
	for _, p := range []*fleet.Process{first, second} {
		assert.NoError(w.t, p.Stop(w.t.Context()))
	}
}

// expired starts a proxy whose certificate expired yesterday.
func (w *doctorRig) expired() {
	if _, err := exec.LookPath("openssl"); err != nil {
		w.t.Skip("the command needs openssl")
	}
	ca := testkit.NewAuthority(w.t, "ca")
	old, oldKey := ca.Issue("old", testkit.Certificate{CN: "proxy", Hosts: []string{"127.0.0.1"}, From: -48 * time.Hour, Until: -24 * time.Hour})
	cert, key := filepath.Join(w.s.dir, "cert.pem"), filepath.Join(w.s.dir, "key.pem")
	install := func(from, to string) {
		raw, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, raw, 0o600)
		}
		require.NoError(w.t, err)
	}
	install(old, cert)
	install(oldKey, key)
	ports, err := fleet.FreePorts(1)
	require.NoError(w.t, err)
	p, err := w.f.Start(w.t.Context(), fleet.Spec{Name: "proxy-tls", Program: "proxy", Args: []string{
		"--host", "127.0.0.1", "--port", fmt.Sprint(ports[0]), "--etcd-endpoints", w.etcd, "--state-dir", w.t.TempDir(), "--connector", "nixl", "--tls-cert", cert, "--tls-key", key,
	}})
	require.NoError(w.t, err)
	w.runCommands(w.finds("certificate", fmt.Sprintf("proxy 127.0.0.1:%d", ports[0]), "has expired at", "write new files over the old ones on that machine"))
	fresh, freshKey := ca.Issue("fresh", testkit.Certificate{CN: "proxy", Hosts: []string{"127.0.0.1"}, Until: 90 * 24 * time.Hour})
	install(freshKey, key)
	install(fresh, cert)
	w.clean()
	assert.NoError(w.t, p.Stop(w.t.Context()))
}
