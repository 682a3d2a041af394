package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// process is an agent in a separate process.
type process struct {
	*exec.Cmd
	log *lockedBuffer
}

func startProcess(t *testing.T, args []string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.CommandContext(t.Context(), self, args...), log: &lockedBuffer{}}
	p.Env = append(os.Environ(), envRun+"=1")
	p.Stdout, p.Stderr = p.log, p.log
	p.WaitDelay = time.Second // an engine that outlives its agent keeps the output open
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, p.Start())
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
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m"}, TTFT: time.Hour})
	p := startProcess(t, fast(etcd.Endpoint(), "decode", engine.Address()))
	awaitState(t, cli, k, instance.Ready)
	leave := longRequest(t, engine)
	defer leave()
	for i, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		require.NoError(t, p.Process.Signal(s))
		if i == 0 {
			awaitState(t, cli, k, instance.Draining)
			p.log.awaits(t, "still draining: 1 running")
		}
	}
	assert.NoError(t, p.Wait(), "second signal")
	kv, _ := look(t, cli, k)
	assert.True(t, kv == nil, "the key outlives the agent")
	p.log.awaits(t, "drained: wait skipped")
}

// SIGTERM after "pdmesh-agent drain" counts as the first signal: the drain continues.
func TestSignalAfterDrain(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m"}, TTFT: time.Hour})
	socket := filepath.Join(t.TempDir(), "a.sock")
	p := startProcess(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--socket", socket))
	awaitState(t, cli, k, instance.Ready)
	leave := longRequest(t, engine)
	code, _, errs := ask(t, "drain", "--socket", socket)
	require.Equal(t, 0, code, "drain: %s", errs)
	p.log.awaits(t, "still draining: 1 running")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.log.awaits(t, "terminated")
	leave()
	assert.NoError(t, p.Wait())
	p.log.awaits(t, "drained: ")
	assert.NotContains(t, p.log.String(), "drained: wait skipped")
}

// SIGTERM keeps an idle engine registered as draining for --shutdown-delay; SIGINT does not.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	for _, tc := range []struct {
		signals []syscall.Signal
		ends    string
	}{
		{[]syscall.Signal{syscall.SIGINT}, "drained: the engine is idle"},
		{[]syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, "drained: wait skipped"},
	} {
		t.Run(fmt.Sprint(tc.signals), func(t *testing.T) {
			t.Parallel()
			engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"org/m"}})
			k := key("decode", engine.Address())
			p := startProcess(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--shutdown-delay", "1h"))
			awaitState(t, cli, k, instance.Ready)
			for i, s := range tc.signals {
				require.NoError(t, p.Process.Signal(s))
				if i+1 < len(tc.signals) {
					awaitState(t, cli, k, instance.Draining)
				}
			}
			assert.NoError(t, p.Wait())
			p.log.awaits(t, tc.ends)
		})
	}
}

func TestKilledAgent_Replaced(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{})
	args := fast(etcd.Endpoint(), "decode", engine.Address())
	p := startProcess(t, slices.Concat(args, []string{"--ttl", "60s"}))
	before, was := awaitState(t, cli, k, instance.Ready)
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	// The successor need not wait until the dead agent's lease
	// expires, and the engine is still the same process.
	p = startProcess(t, args)
	testkit.Eventually(t, patience, func() error {
		kv, rec := look(t, cli, k)
		if kv == nil || kv.Lease == before.Lease {
			return errors.New("not taken over")
		}
		assert.Equal(t, was.ID, rec.ID)
		assert.Equal(t, instance.Ready, rec.State)
		return nil
	})
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	awaitGone(t, cli, k) // when its lease expires
}

// However short the time, etcd learns that the instance leaves before its key is deleted.
// Otherwise, proxies would take it for an orphan and continue to use the engine.
func TestShutdown_ReportsDrainBeforeDelete(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		signals int
		still   time.Duration // time without an answer of etcd
	}{
		{"one signal", 1, 0},
		{"two signals", 2, 0},
		{"one signal in an election", 1, 1200 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m"}})
			link := testkit.StartLink(t, etcd.Endpoint())
			p := startProcess(t, fast(link.Address(), "decode", engine.Address()))
			awaitState(t, cli, k, instance.Ready)
			if tc.still > 0 {
				link.Freeze()
				restore := time.AfterFunc(tc.still, link.Restore)
				defer restore.Stop()
			}
			for range tc.signals {
				require.NoError(t, p.Process.Signal(syscall.SIGTERM))
			}
			assert.NoError(t, p.Wait(), "agent")
			awaitGone(t, cli, k)
			// After two signals, the agent has one second for the write, which a busy machine may exceed.
			late := tc.signals == 2 && strings.Contains(p.log.String(), "etcd did not store the drain")
			h := history(t, cli, k)
			assert.False(t, !slices.Contains(h, "draining") && !late, "history of the key: %v", h)
		})
	}
}
