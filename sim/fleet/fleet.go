package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options of a fleet; BinDir is required.
type Options struct {
	// BinDir holds the programs proxy, agent and fakevllm.
	BinDir string
	// Dir gets logs/ and the data of etcd. Empty means a temporary directory
	// that Close removes.
	Dir string
	// Output gets every line of every child behind its name; nil leaves the
	// lines in the log files only.
	Output io.Writer
	// ReadyTimeout bounds each wait for readiness; 0 means 30 s.
	ReadyTimeout time.Duration
	// StopTimeout is how long Close lets a child take after SIGTERM before it
	// is killed; 0 means 5 s.
	StopTimeout time.Duration
	// ProxyEnv are settings of every proxy, NAME=value.
	ProxyEnv []string
}

// Fleet owns child processes and a directory.
type Fleet struct {
	o      Options
	dir    string
	output io.Writer // nil or a sharedWriter
	http   *http.Client
	start  *starter

	mu       sync.Mutex // guards what follows
	members  []*Process
	closed   bool
	starting sync.WaitGroup // starts that were let in before closed was set
}

// ErrClosed is the error of a start after Close.
var ErrClosed = errors.New("fleet is closed")

// New prepares a fleet; nothing runs yet. The caller must call Close.
func New(o Options) (*Fleet, error) {
	bin, err := filepath.Abs(o.BinDir)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	o.BinDir = bin
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 30 * time.Second
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 5 * time.Second
	}
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "pdmesh-"); err != nil {
			return nil, fmt.Errorf("fleet: %w", err)
		}
	} else if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	f := &Fleet{
		o: o, dir: dir, start: newStarter(),
		// Probes only: each answer is small, connections are not kept.
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if o.Output != nil {
		f.output = &sharedWriter{w: o.Output}
	}
	return f, nil
}

// Dir is where logs and data are.
func (f *Fleet) Dir() string { return f.dir }

// add starts the command of p and makes it a member.
func (f *Fleet) add(p *Process) error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return ErrClosed
	}
	f.starting.Add(1)
	f.mu.Unlock()
	defer f.starting.Done()

	if err := f.start.start(p.cmd); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, p)
	return nil
}

// environment is what every child inherits. Settings of the user's own shell
// (PD_..., ADMIN_API_KEY, proxies for HTTP) must not change the fleet.
func (f *Fleet) environment() []string {
	env := []string{"HOME=" + f.dir, "XDG_RUNTIME_DIR=" + f.dir} // the latter for the agents' sockets
	for _, name := range []string{"PATH", "TMPDIR", "GOMAXPROCS", "GORACE", "GOCOVERDIR", "GODEBUG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// Running lists the members that have not ended, in the order of their start.
func (f *Fleet) Running() []*Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.members), func(p *Process) bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
}

// Close stops every member, stage after stage from the highest down, all of a
// stage at once, and removes the directory if it was a temporary one. The error
// tells which members had to be killed; nothing runs afterwards in any case. A
// second Close does nothing.
func (f *Fleet) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	f.starting.Wait()

	var errs []error
	running := f.Running()
	for len(running) > 0 {
		top := running[0].stage
		for _, p := range running {
			top = max(top, p.stage)
		}
		errs = append(errs, f.stopStage(running, top))
		running = slices.DeleteFunc(running, func(p *Process) bool { return p.stage == top })
	}
	f.start.close()
	if f.o.Dir == "" {
		errs = append(errs, os.RemoveAll(f.dir))
	}
	return errors.Join(errs...)
}

func (f *Fleet) stopStage(members []*Process, stage int) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.o.StopTimeout)
	defer cancel()
	errs := make([]error, len(members))
	var group sync.WaitGroup
	for i, p := range members {
		if p.stage == stage {
			group.Go(func() { errs[i] = p.Stop(ctx) })
		}
	}
	group.Wait()
	return errors.Join(errs...)
}

// Abandon is Close in a hurry: every member is killed at once.
func (f *Fleet) Abandon() error {
	var errs []error
	for _, p := range slices.Backward(f.Running()) {
		errs = append(errs, p.Kill())
	}
	return errors.Join(append(errs, f.Close())...)
}
