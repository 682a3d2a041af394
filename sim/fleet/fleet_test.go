package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// childEnv is the variable that makes this test binary act as a child; see child.
const childEnv = "FLEET_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		os.Exit(child(mode))
	}
	leak.Main(m)
}

// child runs a started process and returns its exit code.
func child(mode string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	switch verb, arg, _ := strings.Cut(mode, ":"); verb {
	case "fail":
		fmt.Println("about to fail")
		fmt.Fprint(os.Stderr, "no newline at the end")
		return 3
	case "serve": // prints hello, then waits for SIGTERM and records its end in a file
		fmt.Println("hello")
		fmt.Println("PD_PORT=" + os.Getenv("PD_PORT"))
		<-term
		if arg != "" {
			file, name, _ := strings.Cut(arg, ",")
			f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return 1
			}
			fmt.Fprintln(f, name)
			f.Close()
		}
		return 0
	case "stubborn": // ignores SIGTERM
		fmt.Println("hello")
		for range term {
		}
	case "parent": // starts a child, prints its pid, and waits to be killed
		f, err := fleet.New(fleet.Options{BinDir: ".", Dir: arg})
		if err != nil {
			return 1
		}
		p, err := f.Start(context.Background(), fleet.Spec{Name: "grandchild", Program: os.Args[0], Env: []string{childEnv + "=stubborn"}})
		if err != nil {
			return 1
		}
		fmt.Println("grandchild", p.PID())
		<-term
	}
	return 0
}

func newFleet(t *testing.T, o fleet.Options) *fleet.Fleet {
	t.Helper()
	o.BinDir = "."
	f, err := fleet.New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, f.Abandon(), "abandon")
	})
	return f
}

func spec(name, mode string) fleet.Spec {
	return fleet.Spec{Name: name, Program: os.Args[0], Env: []string{childEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}}
}

// saidHello returns a Ready that waits for the first line in the log of a child.
func saidHello(f *fleet.Fleet, name string) func(context.Context) error {
	return func(context.Context) error {
		raw, err := os.ReadFile(filepath.Join(f.Dir(), "logs", name+".log"))
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(raw, []byte("hello\n")) {
			return errors.New("no hello in the log")
		}
		return nil
	}
}

// started starts the child "one" and waits until it has said hello.
func started(t *testing.T, f *fleet.Fleet, mode string) *fleet.Process {
	t.Helper()
	s := spec("one", mode)
	s.Ready = saidHello(f, "one")
	p, err := f.Start(t.Context(), s)
	require.NoError(t, err)
	return p
}

// Concurrent callers, in this process or in others, get different ports.
func TestFreePorts(t *testing.T) {
	t.Parallel()
	const callers, each = 40, 20
	got := make(chan []int, callers)
	for range callers {
		go func() {
			ports, err := fleet.FreePorts(each)
			assert.NoError(t, err)
			got <- ports
		}()
	}
	seen := make(map[int]bool)
	for range callers {
		for _, port := range <-got {
			assert.False(t, seen[port], "port %d twice", port)
			seen[port] = true
		}
	}
	assert.Equal(t, callers*each, len(seen), "different ports")
	// Other programs may have taken a few of them.
	taken := 0
	for port := range seen {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			taken++
			continue
		}
		l.Close()
	}
	assert.LessOrEqual(t, taken, len(seen)/10, "%d of %d ports are not free", taken, len(seen))
}

func TestOutputAndEnvironment(t *testing.T) {
	t.Setenv("PD_PORT", "1234") // variables of the caller must not reach the children
	f := newFleet(t, fleet.Options{})
	p := started(t, f, "serve")
	require.NoError(t, p.Stop(t.Context()))
	if p.Err() != nil {
		t.Errorf("ended with %v", p.Err())
	}
	assert.Equal(t, "hello\nPD_PORT=", p.LogTail(5), "log")
	assert.Equal(t, 0, len(f.Running()), "still running: %v", f.Running())
}

func TestChild_Fails(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Options{})
	s := spec("bad", "fail")
	s.Ready = func(context.Context) error { return errors.New("not yet") }
	_, err := f.Start(t.Context(), s)
	require.True(t, errors.Is(err, fleet.ErrExited), "error %v, want ErrExited", err)
	require.True(t, testkit.Contains(t, err.Error(), "bad", "exit status 3", "about to fail", "no newline at the end"))
}

func TestNeverReady(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Options{ReadyTimeout: 200 * time.Millisecond})
	s := spec("slow", "stubborn")
	s.Ready = func(context.Context) error { return errors.New("the answer was 503") }
	_, err := f.Start(t.Context(), s)
	assert.True(t, errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "the answer was 503"),
		"error %v: want a deadline and the last error", err)
	assert.Equal(t, 0, len(f.Running()), "the process that did not become ready still runs")
}

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Options{})
	_, err := f.Start(t.Context(), fleet.Spec{Name: "none", Program: "no-such-program"})
	assert.True(t, errors.Is(err, os.ErrNotExist), "error %v, want ErrNotExist", err)
}

// A process does nothing any more when Signal has returned, also on a busy machine.
func TestSignal_AwaitsStop(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	f := newFleet(t, fleet.Options{})
	p, err := f.Start(t.Context(), fleet.Spec{Name: "busy", Program: "/bin/sh", Args: []string{"-c", "while :; do :; done"}})
	require.NoError(t, err)
	for range 20 {
		require.NoError(t, p.Signal(syscall.SIGSTOP))
		stat := string(testkit.ReadFile(t, fmt.Sprintf("/proc/%d/stat", p.PID())))
		assert.Contains(t, stat, ") T ")
		require.NoError(t, p.Signal(syscall.SIGCONT))
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Options{})
	p := started(t, f, "stubborn")
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	require.NoError(t, p.Kill())
	assert.True(t, p.Err() != nil && strings.Contains(p.Err().Error(), "killed"), "ended with %v", p.Err())
	assert.NoError(t, p.Kill(), "a second kill")
}

func TestStop_KillsAfterTheDeadline(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Options{})
	p := started(t, f, "stubborn")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Stop(ctx); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("error %v, want one about the kill", err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("it still runs")
	}
}

func TestCloseStopsInOrder(t *testing.T) {
	t.Parallel()
	order := filepath.Join(t.TempDir(), "order")
	f, err := fleet.New(fleet.Options{BinDir: "."})
	require.NoError(t, err)
	for _, name := range []string{"etcd", "engine", "agent"} {
		s := spec(name, "serve:"+order+","+name)
		s.Ready = saidHello(f, name)
		if _, err := f.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, f.Close())
	raw, err := os.ReadFile(order)
	require.NoError(t, err)
	got := strings.Fields(string(raw))
	assert.Equal(t, "agent engine etcd", strings.Join(got, " "), "order of the ends: %v", got)
	if _, err := os.Stat(f.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
	if _, err := f.Start(t.Context(), spec("late", "serve")); !errors.Is(err, fleet.ErrClosed) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a start after Close: %v", err)
	}
	assert.NoError(t, f.Close(), "a second Close")
}
