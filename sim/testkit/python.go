package testkit

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
)

// envPython is the variable with the Python of tests that need libzmq as the peer. By
// default, it is the first Python in the path, or Debian's, that can import zmq.
const envPython = "PD_TEST_PYTHON"

// PythonWithZMQ returns a Python with pyzmq, which includes libzmq. Without one, the test
// is skipped, or fails if REQUIRE_ZMQ is set, as in .ci/run.
func PythonWithZMQ(t testing.TB) string {
	t.Helper()
	for _, python := range []string{os.Getenv(envPython), "python3", "/usr/bin/python3"} {
		if python != "" && exec.CommandContext(t.Context(), python, "-c", "import zmq").Run() == nil {
			return python
		}
	}
	if os.Getenv("REQUIRE_ZMQ") != "" {
		t.Fatal("REQUIRE_ZMQ is set, but no Python can import zmq; install Debian's package python3-zmq")
	}
	t.Skip("no Python can import zmq (REQUIRE_ZMQ=1 makes that a failure)")
	return ""
}

// Python is a script that runs until its standard input ends.
type Python struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
	ended bool
	t     testing.TB
}

// StartPython starts a script, which must end when its standard input does. It
// ends the script when the test ends.
func StartPython(t testing.TB, python, script string, args ...string) *Python {
	t.Helper()
	cmd := exec.Command(python, append([]string{script}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	free, err := fleet.StartOnThread(cmd)
	require.NoError(t, err)
	p := &Python{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout), t: t}
	t.Cleanup(free)
	t.Cleanup(p.End)
	return p
}

// Line waits for the next line that the script prints.
func (p *Python) Line() string {
	p.t.Helper()
	if !p.lines.Scan() {
		p.t.Fatalf("the script printed nothing more: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// End closes the script's standard input and waits for its end. Later calls do nothing.
func (p *Python) End() {
	p.t.Helper()
	if p.ended {
		return
	}
	p.ended = true
	_ = p.stdin.Close() // the script ends on EOF
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the script: %v", err)
	}
}

// Kill ends the script as a crash would.
func (p *Python) Kill() {
	if !p.ended {
		p.ended = true
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.cmd.Wait()         // it was killed
	}
}
