package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runProgram runs a program to its end and returns what it said.
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

// runToFailure runs a program that must not succeed.
func runToFailure(t *testing.T, name string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, name), args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), exit.ExitCode()
}

// The demo checks its own steps; here we check that it reports what it promised.
func TestDemoTour(t *testing.T) {
	t.Parallel()
	for _, connector := range []string{"nixl", "mooncake", "p2p"} { // a sequential flow, a concurrent one, and one that is told by the record
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			tour(t, runProgram(t, "demo", "--once", "--connector", connector))
		})
	}
}

func tour(t *testing.T, out string) {
	t.Helper()
	for _, want := range []string{
		"   > What happens when an engine dies?",
		"prompt computed by   prefill-",
		"answer written by    decode-",
		"Kill decode-2",
		"6 of 6 answered",
		"gone from etcd",
		"$ pdctl list",
		"Every step went as it should",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the tour:\n%s", want, out)
		}
	}
}

// Ctrl-C in the middle of the tour is not a failure and leaves nothing behind.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(filepath.Join(binDir, "demo"))
	cmd.Stdout, cmd.Stderr = w, w
	tmp := t.TempDir()
	cmd.Env = append(cmd.Environ(), "TMPDIR="+tmp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var said strings.Builder
	buf := make([]byte, 4096)
	interrupted := false
	for {
		n, err := r.Read(buf)
		said.Write(buf[:n])
		if !interrupted && strings.Contains(said.String(), "decode-1 ") {
			interrupted = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break // the demo and all its children have closed the pipe
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v\n%s", err, said.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestReplayOfASmallTrace(t *testing.T) {
	t.Parallel()
	var trace strings.Builder
	for i := range 40 {
		blocks, length := fmt.Sprintf("[0, %d]", i+1), 513+i*7
		fmt.Fprintf(&trace, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}`+"\n", i*50, length, 1+i, blocks)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(trace.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out := runProgram(t, "replay", "--trace", path, "--speed", "4", "--limit", "38")
	for _, want := range []string{
		"38 sent of 38: 38 right, 0 wrong, 0 failed",
		"741 generated", // 1 + 2 + ... + 38
		"time to first token", "between tokens", "end to end",
		"prefill-1", "decode-2", " %",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the report:\n%s", want, out)
		}
	}
}
