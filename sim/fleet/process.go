package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Spec says what to run.
type Spec struct {
	// Name is shown before each line of output and names the log file; a name
	// may be used again once its process has ended, its log then goes on.
	Name string
	// Program is the name of a file in the fleet's BinDir, or a path.
	Program string
	Args    []string
	// Env is added to the little that children inherit (see Fleet.environment).
	Env []string
	// Ready is asked again and again until it returns nil; nil means that the
	// process counts as ready once it has started. Each call gets a deadline.
	Ready func(ctx context.Context) error
	// Stage orders the end: Close stops members of a higher stage first.
	Stage int
}

// The stages of the usual members: agents sign off while etcd is there, the
// engines follow, then the proxies, the one with the embedded etcd last.
const (
	stageEtcd = iota
	stageProxy
	stageEngine
	stageAgent
)

// ErrExited is wrapped by the error about a child that ended while something
// was expected of it.
var ErrExited = errors.New("process ended")

// Process is one child. Its methods may be called from several goroutines.
type Process struct {
	name  string
	log   string
	stage int
	cmd   *exec.Cmd
	done  chan struct{} // closed when the child is gone and err is set
	err   error         // of Wait; read after done only
}

// Name is the name of the Spec.
func (p *Process) Name() string { return p.name }

// PID is the operating system's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed once the process has ended and all its output was written.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err reports how the process ended: nil while it runs and for exit code 0.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// LogTail returns the last lines of the process' output.
func (p *Process) LogTail(lines int) string { return tail(p.log, lines) }

// LogFile is where the process' output goes.
func (p *Process) LogFile() string { return p.log }

// Signal sends a signal; a process that is gone already is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Kill ends the process with SIGKILL, as a crash would, and waits until it is
// gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	// A child stopped by SIGSTOP dies of SIGKILL too, so this wait is short.
	<-p.done
	return nil
}

// Stop asks the process to end with SIGTERM and waits. When ctx ends first,
// the process is killed and the error says so.
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

// exited describes an unexpected end, with the last words of the child.
func (p *Process) exited() error {
	how := "exit code 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s: %w (%s); its last lines:\n%s", p.name, ErrExited, how, indent(p.LogTail(15)))
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

// Start runs a program and waits until it is ready. On an error the process is
// gone. ctx bounds the waiting only: the process lives until it is stopped,
// killed, or the fleet is closed.
func (f *Fleet) Start(ctx context.Context, s Spec) (*Process, error) {
	path := s.Program
	if !strings.ContainsRune(path, filepath.Separator) {
		path = filepath.Join(f.o.BinDir, path)
	}
	p := &Process{name: s.Name, stage: s.Stage, log: filepath.Join(f.dir, "logs", s.Name+".log"), done: make(chan struct{})}
	logFile, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	lines := &lineWriter{w: io.Discard, prefix: fmt.Sprintf("%-10s | ", s.Name)}
	if f.output != nil {
		lines.w = f.output
	}
	p.cmd = exec.Command(path, s.Args...)
	p.cmd.Dir = f.dir
	p.cmd.Env = append(f.environment(), s.Env...)
	p.cmd.Stdout = io.MultiWriter(logFile, lines)
	p.cmd.Stderr = p.cmd.Stdout // the same writer, so that one goroutine copies both
	p.cmd.SysProcAttr = childAttributes()
	p.cmd.WaitDelay = time.Second

	if err := f.add(p); err != nil {
		logFile.Close()
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	go func() { // ends with the child; Kill, Stop and Close wait for it
		p.err = p.cmd.Wait()
		lines.flush()
		logFile.Close()
		close(p.done)
	}()
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

// await asks ready until it says nil. It gives up when ctx ends, when the
// fleet's ReadyTimeout has passed, or when one of the processes ends.
func (f *Fleet) await(ctx context.Context, ready func(context.Context) error, procs ...*Process) error {
	ctx, cancel := context.WithTimeout(ctx, f.o.ReadyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not asked yet")
	for {
		for _, p := range procs {
			select {
			case <-p.done:
				return p.exited()
			default:
			}
		}
		try, cancelTry := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		cancelTry()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // else the try was only cut short
			last = err
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("%w; the last answer was: %w", ctx.Err(), last)
			for _, p := range procs {
				err = fmt.Errorf("%w\n  last lines of %s:\n%s", err, p.name, indent(p.LogTail(10)))
			}
			return err
		case <-tick.C:
		}
	}
}
