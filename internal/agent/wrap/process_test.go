package wrap_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/wrap"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestExit(t *testing.T) {
	t.Parallel()
	p, out := start(t, "exit:3", wrap.Options{})
	<-p.Done()
	e := p.Exit()
	assert.True(t, e.Status() == 3 && !e.OK() && e.String() == "exit code 3" && !e.At.IsZero(), "%+v: %s", e, e)
	testkit.Contains(t, out.String(), "out\n", "err\n")
	p, _ = start(t, "exit:0", wrap.Options{})
	<-p.Done()
	e = p.Exit()
	assert.True(t, e.Status() == 0 && e.OK(), "%+v", e)
	p, out = start(t, "plain", wrap.Options{})
	out.awaits(t, "ready")
	e = p.Exit()
	assert.True(t, e.String() == "exit code 0" && e.At.IsZero(), "running: %+v", e)
	assert.NoError(t, p.Signal(syscall.SIGTERM))
	<-p.Done()
	e = p.Exit()
	assert.True(t, e.Status() == 143 && !e.OK() && e.String() == "signal 15 (terminated)", "%+v: %s", e, e)
	for _, send := range []func(syscall.Signal) error{p.Signal, p.SignalGroup} {
		assert.NoError(t, send(syscall.SIGTERM), "a signal to the dead")
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	testkit.WriteFile(t, text, "x")
	for path, want := range map[string]int{"pdmesh-no-such-program": 127, filepath.Join(dir, "none"): 127, text: 126, dir: 126} {
		for _, dieWith := range []bool{false, true} {
			_, err := wrap.Start(wrap.Options{Argv: []string{path}, DieWith: dieWith, Log: silent(), Reaper: wrap.NewReaper()})
			assert.ErrorIs(t, err, wrap.ErrStart, path)
			assert.Equal(t, want, wrap.StartStatus(err), path)
		}
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, child string
		sig         syscall.Signal
		limit       time.Duration
		hurried     bool
		want        int
		says        string
	}{
		{"in order", "wait", syscall.SIGTERM, time.Hour, false, 7, "got terminated"},
		{"as a terminal does", "wait", syscall.SIGINT, time.Hour, false, 7, "got interrupt"},
		{"at the limit", "stubborn", syscall.SIGTERM, 50 * time.Millisecond, false, 137, ""},
		{"in a hurry", "stubborn", syscall.SIGTERM, time.Hour, true, 137, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, out := start(t, tc.child, wrap.Options{})
			out.awaits(t, "ready")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.hurried {
				cancel()
			}
			p.Stop(ctx.Done(), tc.sig, tc.limit)
			e := p.Exit()
			assert.True(t, e.Status() == tc.want && strings.Contains(out.String(), tc.says), "%s, output %q", e, out)
			p.Stop(t.Context().Done(), tc.sig, tc.limit) // after its exit
		})
	}
}

// Processes that a child leaves in its group are ended, if necessary with SIGKILL.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, child := range []string{"plain", "stubborn"} {
		t.Run(child, func(t *testing.T) {
			t.Parallel()
			p, out := start(t, "parent:"+child+":leaves", wrap.Options{Sweep: 100 * time.Millisecond})
			left := out.awaits(t, "ready")
			<-p.Exited()
			assert.Equal(t, 3, p.Exit().Status())
			<-p.Done()
			assert.False(t, alive(left), "process %d is left behind", left)
		})
	}
}

func TestKill_ProcessGroup(t *testing.T) {
	t.Parallel()
	p, out := start(t, "parent:stubborn", wrap.Options{})
	child := out.awaits(t, "ready")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Stop(ctx.Done(), syscall.SIGTERM, time.Hour)
	assert.False(t, alive(child), "left behind")
	assert.False(t, alive(p.PID()), "left behind")
}

func TestChild_DiesWithParent(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"with", "without"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p, out := start(t, "dying:"+how, wrap.Options{})
			child := out.awaits(t, "child ")
			out.awaits(t, "ready")
			require.NoError(t, p.Signal(syscall.SIGKILL))
			<-p.Exited()
			if how == "with" {
				testkit.EventuallyTrue(t, patience, func() bool { return !alive(child) }, "the child has ended")
				return
			}
			// The child has a separate process group, so this process's sweep does not end it.
			<-p.Done()
			assert.True(t, alive(child), "the child died with its parent")
			_ = syscall.Kill(child, syscall.SIGKILL)
		})
	}
}

// Orphans are adopted and reaped: no zombie remains.
func TestReaper(t *testing.T) {
	t.Parallel()
	cmd := again("adopter:wait")
	out := &buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	out.awaits(t, "exit 3 ppid")
	orphan := out.awaits(t, "ready")
	testkit.Eventually(t, patience, func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", orphan)); !os.IsNotExist(err) {
			return fmt.Errorf("%d is still there: %v", orphan, err)
		}
		return nil
	})
	_ = in.Close()
	assert.NoError(t, <-done)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := wrap.Backoff{First: time.Second, Max: 10 * time.Second}
	for i, want := range []int{1, 2, 4, 8, 10, 10} {
		assert.Equal(t, time.Duration(want)*time.Second, b.After(3*time.Second), i)
	}
	assert.Equal(t, time.Second, b.After(time.Minute), "after a good life")
	assert.Equal(t, 2*time.Second, b.After(0), "and then")
}
