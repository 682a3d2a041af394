package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// runProgram runs a program, which must succeed, and returns its output.
func runProgram(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, name), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it stops its children
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// runToFailure runs a program, which must fail, and returns its output and exit code.
func runToFailure(t *testing.T, name string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, name), args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	return string(out), exit.ExitCode()
}

// The demo checks its own steps; this test checks its output.
func TestDemoTour(t *testing.T) {
	t.Parallel()
	for _, connector := range []string{"nixl", "mooncake", "p2p"} { // a sequential flow, a concurrent one, and one that needs the record
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			tour(t, runProgram(t, "demo", "--once", "--connector", connector))
		})
	}
}

func tour(t *testing.T, out string) {
	t.Helper()
	require.True(t, testkit.Contains(t, out,
		"   > What happens when an engine dies?",
		"prompt computed by   prefill-",
		"answer written by    decode-",
		"Kill decode-2",
		"6 of 6 answered",
		"removed from etcd",
		"$ pdctl list",
		" steps passed.",
		"All processes are stopped",
	))
}

// Ctrl-C during the tour is not a failure and leaves nothing behind.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	out := interruptDemo(t, "decode-1 ", nil)
	require.True(t, testkit.Contains(t, out, "Interrupted.", "All processes are stopped"))
}

// With --keep, all processes run until Ctrl-C, including those that the tour killed, and the end of a process
// is reported. The fleet has two proxies and three etcd members, as in docker-compose.yml.
func TestDemoKept(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile(`^  (\S+) .* pid (\d+)$`)
	pids := make(map[string]int)
	out := interruptDemo(t, "proxy-2 has ended: signal: killed", func(line string) {
		if m := row.FindStringSubmatch(line); m != nil {
			pids[m[1]], _ = strconv.Atoi(m[2]) // digits
		}
		if strings.HasPrefix(line, "Logs: ") { // after the table
			assert.NoError(t, syscall.Kill(pids["proxy-2"], syscall.SIGKILL))
		}
	}, "--keep", "--proxies", "2", "--etcd", "3")
	assert.Len(t, pids, 13, "processes")
	for name, pid := range pids {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("%s (pid %d) still runs", name, pid)
		}
	}
	tour(t, out)
	require.True(t, testkit.Contains(t, out,
		"   etcd-3 ", "   proxy-2 ", "13 processes run",
		"drain of decode-1: accepted by proxy-1 after ", "shown by all proxies after ",
		"request 1  ok  proxy-2: prefill-",
		"undrain of decode-1: accepted by proxy-2 after ",
		"Kill etcd-1 (kill -9).", "4 of 4 answered",
		"Restart etcd-1 and decode-2.", "All 13 processes run", "  curl -N http://127.0.0.1:", "pdctl drain prefill 127.0.0.1:",
	))
}

// interruptDemo runs the demo, calls see with each line of its output, and sends
// SIGINT once the output contains until. The demo must then exit with code 0,
// without data or children. It returns the output.
func interruptDemo(t *testing.T, until string, see func(string), args ...string) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	cmd := exec.Command(filepath.Join(binDir, "demo"), args...)
	cmd.Stdout, cmd.Stderr = w, w
	tmp := t.TempDir()
	cmd.Env = append(cmd.Environ(), "TMPDIR="+tmp)
	require.NoError(t, cmd.Start())
	w.Close()
	defer time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Signal(os.Interrupt) }).Stop() // the line never comes
	var out strings.Builder
	interrupted := false
	lines := bufio.NewScanner(r) // ends when the demo and all its children have closed the pipe
	for lines.Scan() {
		out.WriteString(lines.Text() + "\n")
		if see != nil {
			see(lines.Text())
		}
		if !interrupted && strings.Contains(lines.Text(), until) {
			interrupted = true
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	err = cmd.Wait()
	assert.True(t, err == nil && interrupted, "after Ctrl-C: %v; %q came: %v\n%s", err, until, interrupted, out.String())
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	return out.String()
}

func TestReplayOfASmallTrace(t *testing.T) {
	t.Parallel()
	var trace strings.Builder
	for i := range 40 {
		blocks, length := fmt.Sprintf("[0, %d]", i+1), 513+i*7
		fmt.Fprintf(&trace, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}`+"\n", i*50, length, 1+i, blocks)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(trace.String()), 0o600))
	out := runProgram(t, "replay", "--trace", path, "--speed", "4", "--limit", "38")
	require.True(t, testkit.Contains(t, out,
		"38 sent of 38: 38 correct, 0 wrong, 0 failed",
		"741 generated", // 1 + 2 + ... + 38
		"time to first token", "between tokens", "end to end",
		"prefill-1", "decode-2", " %",
	))
}
