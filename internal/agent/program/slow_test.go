package program

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// A busy engine takes seconds to answer /health; --probe-timeout is the limit.
func TestProbeTimeoutAboveTwoSeconds(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"org/m"}})
	link := testkit.StartLink(t, engine.Address())
	link.Delay(1500 * time.Millisecond) // each way
	startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--engine", "http://"+link.Address(), "--probe-timeout", "1m"))
	awaitState(t, etcd.Client(t), key("decode", engine.Address()), instance.Ready)
}

// An engine that does not answer is down with the cause slow.
// When it answers again, it has the same incarnation.
func TestSilentEngine_DownAsSlow(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m"}})
	link := testkit.StartLink(t, engine.Address())
	log, _ := startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--engine", "http://"+link.Address(),
		"--probe-timeout", "500ms", "--slow-after", "1s"))
	awaitState(t, cli, k, instance.Ready)
	var was instance.Record
	// On a slow machine, the engine's facts may need several probes.
	began, err := (&vllm.Client{}).Stats(t.Context(), "http://"+engine.Address())
	require.NoError(t, err)
	testkit.Eventually(t, patience, func() error {
		if _, was = look(t, cli, k); was.Version == "" || was.StartedAt == nil || !was.StartedAt.Equal(began.StartedAt) {
			return fmt.Errorf("version %q, began %v, not %v", was.Version, was.StartedAt, began.StartedAt)
		}
		return nil
	})
	assert.Equal(t, instance.Ready, was.State)
	assert.Equal(t, "", was.Cause)
	link.Freeze()
	_, rec := awaitState(t, cli, k, instance.Down)
	assert.Equal(t, instance.CauseSlow, rec.Cause)
	assert.Equal(t, was.ID, rec.ID)
	log.awaits(t, "engine is slow: ")
	link.Restore()
	_, rec = awaitState(t, cli, k, instance.Ready)
	assert.Empty(t, cmp.Diff(was, rec))
}

// If an agent gets no CPU time for seconds, its timers expire while
// answers are still unread. That says nothing about the engine.
func TestStarvedAgent_NotDown(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m"}})
	link := testkit.StartLink(t, engine.Address())
	p := startProcess(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--engine", "http://"+link.Address(),
		"--probe-timeout", "1500ms", "--slow-after", "1ms", "--ttl", "1m")) // far longer than a pause of a busy machine
	awaitState(t, cli, k, instance.Ready)
	link.Delay(50 * time.Millisecond) // several pauses of the agent per answer
	turn := func(sig syscall.Signal, d time.Duration) {
		require.NoError(t, p.Process.Signal(sig))
		timer := time.NewTimer(d)
		defer timer.Stop()
		<-timer.C
	}
	for range 6 {
		turn(syscall.SIGSTOP, 2*time.Second)
		turn(syscall.SIGCONT, 30*time.Millisecond)
	}
	h := history(t, cli, k)
	assert.False(t, slices.Contains(h, "down"), "history of the key: %v", h)
}
