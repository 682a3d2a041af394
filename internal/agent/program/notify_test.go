package program

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// READY does not wait until the engine has loaded: systemd would kill the agent after its start timeout.
func TestSystemd(t *testing.T) {
	sd := testkit.StartSystemd(t)
	t.Setenv("NOTIFY_SOCKET", sd.Path) // the process inherits it
	t.Setenv("WATCHDOG_USEC", "200000")
	loaded := filepath.Join(t.TempDir(), "loaded")
	w := wrapEngine(t, "load="+loaded)
	sd.Await(t, "READY=1", 1)
	sd.Await(t, "STATUS=probing: ", 1)
	sd.Await(t, "WATCHDOG=1", 3)
	touch(t, loaded)
	awaitState(t, w.cli, w.key, instance.Ready)
	sd.Await(t, "STATUS=serving; registration registered", 1)
	w.send(t, syscall.SIGTERM)
	sd.Await(t, "STOPPING=1", 1)
	sd.Await(t, "EXTEND_TIMEOUT_USEC=170000000", 1) // 2 min drain, 30 s engine, 20 s
	w.exits(t, 7)
}

// A bridge runs under the same unit, which has a watchdog.
func TestSystemd_Bridge(t *testing.T) {
	sd := testkit.StartSystemd(t)
	t.Setenv("NOTIFY_SOCKET", sd.Path)
	t.Setenv("WATCHDOG_USEC", "200000")
	etcd := etcdtest.Start(t)
	p := startProcess(t, []string{"--zmq-register", "tcp://" + testkit.FreePort(t), "--etcd-endpoints", etcd.Endpoint(), "--ttl", "10s", "--socket", "off"})
	sd.Await(t, "READY=1", 1)
	sd.Await(t, "WATCHDOG=1", 3)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.NoError(t, p.Wait())
}

type stuckEngine struct{}

func (stuckEngine) Probe(ctx context.Context) (instance.Facts, error) {
	<-ctx.Done()
	return instance.Facts{}, ctx.Err()
}
func (stuckEngine) Load(context.Context) (vllm.Stats, error) { return vllm.Stats{}, nil }

type noRegistrar struct{}

func (noRegistrar) Set(instance.Record)          {}
func (noRegistrar) Settle(context.Context) bool  { return true }
func (noRegistrar) Revoke(context.Context) error { return nil }

// An agent whose loop has made no progress for several rounds is not
// sane. Before its start and after its end, it is not judged.
func TestSane(t *testing.T) {
	t.Parallel()
	n := &service{Config: setup.Config{Options: agent.Options{ProbeInterval: time.Second, ProbeTimeout: time.Second}}}
	assert.NoError(t, n.checkAlive(t.Context()), "without an agent")
	log := testLog()
	ag := agent.New(stuckEngine{}, noRegistrar{}, agent.Options{ProbeTimeout: time.Hour, Log: log})
	n.registration.Store(&registration{agent: ag})
	assert.NoError(t, n.checkAlive(t.Context()), "before its first turn")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ag.Run(ctx) }()
	testkit.EventuallyTrue(t, patience, func() bool { return !ag.Status().Beat.IsZero() }, "no turn yet")
	n.ProbeInterval, n.ProbeTimeout = -agent.MaxBackoff, 0 // no time at all
	testkit.Until(t, patience, func() error { return n.checkAlive(t.Context()) }, func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "no probe for")
	})
	cancel()
	<-done
	assert.NoError(t, n.checkAlive(t.Context()), "after its end")
}
