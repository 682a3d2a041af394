package real_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// wrapped starts an agent that starts an engine, with additional arguments.
func (r *rig) wrapped(name string, role instance.Role, more ...string) *engine {
	r.t.Helper()
	ports, err := fleet.FreePorts(2)
	require.NoError(r.t, err)
	args := []string{"--etcd-endpoints", strings.Join(r.proxy.Etcd, ","), "--", absolute("lab/bin/vllm")}
	args = slices.Concat(args, command(ports[0]), []string{transfer(role)}, more)
	e := &engine{name: name, role: role, address: "127.0.0.1:" + strconv.Itoa(ports[0])}
	e.Process, err = r.fleet.Start(r.t.Context(), fleet.Spec{
		Name: name, Program: "agent", Args: args, Env: environment("VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(ports[1])),
	})
	require.NoError(r.t, err)
	return e
}

// TestWrappingAgent starts the engines by their agents, which read address, role, connector and model from
// the command line of the engine.
func TestWrappingAgent(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	var err error
	r.proxy, err = r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy"})
	require.NoError(t, err)
	prefill, decode := r.wrapped("prefill", instance.Prefill), r.wrapped("decode", instance.Decode)
	require.NoError(t, r.proxy.WaitFor(t.Context(), 1, 1))
	r.checkTransfer(t, []*engine{decode})

	// SIGTERM: the agent drains, stops the engine, and reports its exit.
	require.NoError(t, prefill.Stop(t.Context()))
	if err := prefill.Err(); err != nil {
		t.Errorf("the agent of an engine that was stopped: %v\n%s", err, prefill.LogTail(40))
	}
	if _, err := r.fetch(t.Context(), prefill.url()+"/health"); err == nil {
		t.Error("the engine is still running after its agent has stopped")
	}
	st, err := r.proxy.Status(t.Context())
	if err != nil || len(st.PrefillNodes) != 0 {
		t.Errorf("prefill instances %q, %v", st.PrefillNodes, err)
	}

	// The worker is killed: the engine exits by itself, and then its agent.
	list, err := r.engineOf(decode)
	require.NoError(t, err)
	pid, err := workerOf(list)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	select {
	case <-decode.Done():
	case <-t.Context().Done():
		t.Fatal("the agent is still running")
	}
	r.awaitDecodes(0)
	if status, body, err := r.ask("x", 1); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("status %d, %v: %s", status, err, body)
	}
}

// engineOf returns the processes of the engine that an agent has started: the process group of the agent's
// child.
func (r *rig) engineOf(e *engine) ([]int, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	group := 0
	for _, pid := range all {
		if parent, err := number(pid, "status", "PPid:"); err == nil && parent == e.PID() {
			group = pid
		}
	}
	if group == 0 {
		return nil, fmt.Errorf("the agent of %s has no child", e.name)
	}
	return inGroup(all, group), nil
}

// killEngine kills all processes of an agent's engine with SIGKILL.
func (r *rig) killEngine(e *engine) {
	r.t.Helper()
	list, err := r.engineOf(e)
	require.NoError(r.t, err)
	for _, pid := range list {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have exited with another one
	}
}
