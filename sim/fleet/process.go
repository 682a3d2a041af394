package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

// Spec describes a process to start.
type Spec struct {
	// Name names the log file. A name may be used again once its process has
	// ended; its log is then appended to.
	Name string
	// Program is the name of a file in the BinDir of the fleet, or a path.
	Program string
	Args    []string
	// Env is added to the environment of every child (see Fleet.environment).
	Env []string
	// Ready is called until it returns nil. A nil Ready means that the process is
	// ready once it has started. The context of each call has a deadline.
	Ready func(ctx context.Context) error
}

// ErrExited is wrapped by errors about a child that ended unexpectedly.
var ErrExited = errors.New("process ended")

// Process is one child, which Fleet.Start creates. Its methods are safe for
// concurrent use.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended and err is set
	err  error         // of Wait; valid once done is closed
}

// Name returns the name of the Spec.
func (p *Process) Name() string { return p.name }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended. It is nil while the process runs, and for
// exit code 0.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// LogTail returns the last lines of the output, from at most its last 32 KiB.
func (p *Process) LogTail(lines int) string {
	raw, _ := os.ReadFile(p.log) // none: no lines
	const window = 32 << 10
	raw = raw[max(0, len(raw)-window):]
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogFile returns the path of the log file.
func (p *Process) LogFile() string { return p.log }

// Signal sends a signal. It returns nil if the process has already ended. SIGSTOP is awaited, see AwaitStop.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	if sig == syscall.SIGSTOP {
		AwaitStop(p.PID())
	}
	return nil
}

// AwaitStop waits until all threads of processes that got SIGSTOP have stopped, at most 10 s: on a busy
// machine, threads run for a while after the signal, and can still answer requests. It returns at once on
// systems without /proc.
func AwaitStop(pids ...int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // no new ones after the signal
		for _, thread := range threads {
			for stat, _ := os.ReadFile(thread); running.Match(stat) && sleep.For(ctx, time.Millisecond); {
				stat, _ = os.ReadFile(thread)
			}
		}
	}
}

// running matches the state of a thread in proc(5) that has neither stopped nor ended.
var running = regexp.MustCompile(`\) [RSDI]`)

// Kill sends SIGKILL, as a crash would, and waits until the process has ended.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	// SIGKILL also ends a child stopped by SIGSTOP, so this wait is short.
	<-p.done
	return nil
}

// Stop sends SIGTERM and waits until the process has ended. If ctx ends first, it
// kills the process and returns an error.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return fmt.Errorf("%s did not stop in time and was killed: %w", p.name, ctx.Err())
}

// exited returns the error about an unexpected end, with the last log lines.
func (p *Process) exited() error {
	how := "exit code 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s: %w (%s); last log lines:\n%s", p.name, ErrExited, how, indent(p.LogTail(15)))
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

// Start runs a program and waits until it is ready. If it returns an error, the
// process has ended. ctx bounds only the wait: the process runs until it is
// stopped or killed, or the fleet is closed.
func (f *Fleet) Start(ctx context.Context, s Spec) (*Process, error) {
	path := s.Program
	if !strings.ContainsRune(path, filepath.Separator) {
		path = filepath.Join(f.o.BinDir, path)
	}
	p := &Process{name: s.Name, log: filepath.Join(f.dir, "logs", s.Name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	defer out.Close() // the child has its own descriptor
	p.cmd = exec.Command(path, s.Args...)
	p.cmd.Dir = f.dir
	p.cmd.Env = append(f.environment(), s.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = childAttributes()
	if err := f.add(p); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	if s.Ready == nil {
		return p, nil
	}
	if err := f.await(ctx, s.Ready, p); err != nil {
		if killErr := p.Kill(); killErr != nil {
			err = errors.Join(err, killErr)
		}
		return nil, fmt.Errorf("%s did not become ready: %w", s.Name, err)
	}
	return p, nil
}

// start starts the command, and closes done once it has ended.
func (p *Process) start() error {
	free, err := StartOnThread(p.cmd)
	if err != nil {
		return err
	}
	go func() { // ends with the child; Kill, Stop and Close wait for it
		p.err = p.cmd.Wait()
		free()
		close(p.done)
	}()
	return nil
}

// StartOnThread starts a command from a thread that does nothing else until free is called.
// Linux sends the parent death signal when the thread that started a child exits, not the
// process (prctl(2), PR_SET_PDEATHSIG), and Go ends threads: a goroutine that returns with
// its thread locked takes the thread with it, and every child that was started from there.
func StartOnThread(cmd *exec.Cmd) (free func(), err error) {
	started, ended, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-ended
		}
	}()
	if err := <-started; err != nil {
		<-done
		return nil, err
	}
	return func() { close(ended); <-done }, nil
}

// await calls ready until it returns nil. It returns an error when ctx ends, when
// ReadyTimeout has passed, or when the process ends.
func (f *Fleet) await(ctx context.Context, ready func(context.Context) error, p *Process) error {
	ctx, cancel := context.WithTimeout(ctx, f.o.ReadyTimeout)
	defer cancel()
	last := errors.New("not probed yet")
	for {
		select {
		case <-p.done:
			return p.exited()
		default:
		}
		try, cancelTry := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		cancelTry()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // otherwise the call was cut short
			last = err
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%w; last error: %w\n  last log lines of %s:\n%s", ctx.Err(), last, p.name, indent(p.LogTail(10)))
		}
	}
}
