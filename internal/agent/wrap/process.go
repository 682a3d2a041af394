package wrap

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

// ErrStart is wrapped by the error of a command that did not start.
var ErrStart = errors.New("cannot start the command")

// Options configure a process.
type Options struct {
	Argv           []string // the program first; required
	Env            []string // as os.Environ returns it; nil inherits
	Stdout, Stderr io.Writer
	// DieWith makes the kernel send SIGTERM to the child when this program exits, for any
	// reason (Linux only). Without it the child continues.
	DieWith bool
	// Sweep is the time between SIGTERM and SIGKILL for processes that the child left in
	// its group; 0 means 5 s.
	Sweep time.Duration
	// Reaper of the program, which leaves the child to Process; nil if there is none.
	Reaper *Reaper
	Log    logrus.FieldLogger
}

// defaultSweep is the default of Options.Sweep.
const defaultSweep = 5 * time.Second

// outputDelay is how long output is copied after the exit of the child while other
// processes hold its pipes. It applies only to writers that are not files.
const outputDelay = time.Second

// Process is a running child. Its methods may be called from several goroutines.
type Process struct {
	cmd    *exec.Cmd
	o      Options
	pid    int
	since  time.Time
	exited chan struct{} // closed with exit set
	done   chan struct{}
	exit   Exit
}

// Exit describes the end of a process.
type Exit struct {
	Code   int            // exit code, unless a signal ended the process
	Signal syscall.Signal // signal that ended the process, else 0
	Err    error          // reason why neither is known
	At     time.Time
}

// OK reports whether the process exited with code 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 && e.Err == nil }

// Status returns the exit code as shells define it: 128+n after signal n.
func (e Exit) Status() int {
	switch {
	case e.Err != nil:
		return 1
	case e.Signal != 0:
		return 128 + int(e.Signal)
	}
	return e.Code
}

// String describes the exit.
func (e Exit) String() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Signal != 0:
		return fmt.Sprintf("signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// StartStatus returns the exit code that shells use for a command that cannot be
// started: 127 if it does not exist, 126 if it is not executable.
func StartStatus(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// Start runs the command. It has no stdin: a background group that reads from a
// terminal would be stopped.
func Start(o Options) (*Process, error) {
	o.Sweep = cmp.Or(o.Sweep, defaultSweep)
	cmd := exec.Command(o.Argv[0], o.Argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = o.Env, o.Stdout, o.Stderr
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &Process{cmd: cmd, o: o, exited: make(chan struct{}), done: make(chan struct{})}
	free, err := p.launch()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	p.pid, p.since = cmd.Process.Pid, time.Now()
	go func() { // ends with the child and its group; Stop waits for it
		defer close(p.done)
		err := cmd.Wait()
		free()
		p.exit = exitOf(cmd.ProcessState, err)
		if o.Reaper != nil {
			o.Reaper.forget(p.pid)
		}
		close(p.exited)
		p.sweep()
	}()
	return p, nil
}

// launch starts the command, through the reaper if there is one: it must know the child from the start.
func (p *Process) launch() (free func(), err error) {
	start := p.cmd.Start
	if p.o.Reaper != nil {
		start = func() error { return p.o.Reaper.start(p.cmd) }
	}
	free = func() {}
	if p.o.DieWith {
		return startDeathsig(p.cmd, start)
	}
	return free, start()
}

func exitOf(state *os.ProcessState, err error) Exit {
	e := Exit{At: time.Now()}
	if state == nil {
		e.Err = fmt.Errorf("how it ended is not known: %w", err)
	} else if status := state.Sys().(syscall.WaitStatus); status.Signaled() { //nolint:forcetypeassert // on every Unix
		e.Signal = status.Signal()
	} else {
		e.Code = status.ExitStatus()
	}
	return e
}

// PID returns the process id of the child, which is also the id of its group.
func (p *Process) PID() int { return p.pid }

// Since returns the start time of the child.
func (p *Process) Since() time.Time { return p.since }

// Exited returns a channel that is closed when the child has exited; then Exit is known.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Exit returns how the child ended; zero until Exited is closed.
func (p *Process) Exit() Exit {
	select {
	case <-p.exited:
		return p.exit
	default:
		return Exit{}
	}
}

// Signal sends the child a signal. It returns nil if the child has exited.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// SignalGroup sends all processes of the child's group a signal.
func (p *Process) SignalGroup(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil // the group id may have been reused
	default:
	}
	if err := syscall.Kill(-p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to group %d: %w", sig, p.pid, err)
	}
	return nil
}

// Stop sends sig and waits until the child and its group have exited. SIGINT goes to the
// whole group, as from a terminal; other signals go to the child, which stops its workers.
// The group gets SIGKILL after limit, or when Stop receives from hurry.
func (p *Process) Stop(hurry <-chan struct{}, sig syscall.Signal, limit time.Duration) {
	send := p.Signal
	if sig == syscall.SIGINT {
		send = p.SignalGroup
	}
	if err := send(sig); err != nil {
		p.o.Log.WithError(err).Warn("cannot signal the engine")
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited: // the sweep ends the rest
	case <-hurry:
		p.kill()
	case <-timer.C:
		p.o.Log.WithField("limit", limit).Warn("the engine has not ended: killing it")
		p.kill()
	}
	select {
	case <-p.done:
	case <-hurry:
		p.kill()
		<-p.done
	}
}

func (p *Process) kill() {
	if err := p.SignalGroup(syscall.SIGKILL); err != nil {
		p.o.Log.WithError(err).Error("the engine could not be killed")
	}
}

// sweepPoll is the interval at which a process group that should end is checked;
// killWait is how long SIGKILL may take. A process within a driver call exits when
// that returns.
const (
	sweepPoll = 20 * time.Millisecond
	killWait  = 10 * time.Second
)

// sweep ends the remaining processes of the child's group.
func (p *Process) sweep() {
	if !p.groupAlive() {
		return
	}
	p.o.Log.WithField("group", p.pid).Warn("the engine left processes behind: ending them")
	_ = syscall.Kill(-p.pid, syscall.SIGTERM)
	if p.awaitGroup(p.o.Sweep) {
		return
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	if !p.awaitGroup(killWait) {
		p.o.Log.WithField("group", p.pid).Error("processes of the engine survived SIGKILL; is a device driver stuck?")
	}
}

func (p *Process) awaitGroup(limit time.Duration) (exited bool) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(sweepPoll)
	defer tick.Stop()
	for p.groupAlive() {
		select {
		case <-deadline.C:
			return false
		case <-tick.C:
		}
	}
	return true
}

// groupAlive reports whether the group has members. Zombies count, so a Reaper must reap them.
func (p *Process) groupAlive() bool {
	err := syscall.Kill(-p.pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// Backoff computes the pauses between the starts of a process that keeps failing: First, then
// twice as long each time, up to Max. After a run of Max or longer the pauses start at First
// again.
type Backoff struct {
	First, Max time.Duration
	next       time.Duration
}

// After returns the pause after a run of this duration.
func (b *Backoff) After(lasted time.Duration) time.Duration {
	if b.next == 0 || lasted >= b.Max {
		b.next = b.First
	}
	d := b.next
	b.next = min(2*b.next, b.Max)
	return d
}
