package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options configures a Fleet; BinDir is required.
type Options struct {
	// BinDir is the directory of the programs proxy, agent, fakevllm and, for
	// StartEtcd, etcd.
	BinDir string
	// Dir receives logs/ and the data of etcd. Empty means a temporary directory
	// that Close removes.
	Dir string
	// ReadyTimeout bounds each wait for readiness; 0 means 30 s.
	ReadyTimeout time.Duration
	// ProxyEnv holds environment variables of every proxy, NAME=value.
	ProxyEnv []string
}

// Fleet owns child processes and a directory. New creates it. Its methods are
// safe for concurrent use.
type Fleet struct {
	o    Options
	dir  string
	http *http.Client

	mu      sync.Mutex // guards the fields below
	members []*Process
	closed  bool
}

// ErrClosed is returned by a start after Close.
var ErrClosed = errors.New("fleet is closed")

// New creates a fleet without processes. The caller must call Close or Abandon.
func New(o Options) (*Fleet, error) {
	bin, err := filepath.Abs(o.BinDir)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	o.BinDir = bin
	o.ReadyTimeout = cmp.Or(o.ReadyTimeout, 30*time.Second)
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
	return &Fleet{
		o: o, dir: dir,
		// For probes only: answers are small, and connections are not reused.
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}, nil
}

// FillBinDir sets the value of a flag --bin, if it is empty, to the directory of this program.
func FillBinDir(dir *string) error {
	if *dir != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the other programs: %w (name their directory with --bin)", err)
	}
	*dir = filepath.Dir(self)
	return nil
}

// Dir returns the directory of logs and data.
func (f *Fleet) Dir() string { return f.dir }

// add starts the command of p and records it as a member.
func (f *Fleet) add(p *Process) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	if err := p.start(); err != nil {
		return err
	}
	f.members = append(f.members, p)
	return nil
}

// environment returns the environment of every child. Variables of the caller
// such as PD_..., ADMIN_API_KEY or HTTP_PROXY are left out, so that they do not
// change the fleet.
func (f *Fleet) environment() []string {
	env := []string{"HOME=" + f.dir, "XDG_RUNTIME_DIR=" + f.dir} // for the sockets of the agents
	for _, name := range []string{"PATH", "TMPDIR", "GOMAXPROCS", "GORACE", "GOCOVERDIR", "GODEBUG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// Running returns the members that have not ended, in the order of their start.
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

// Close stops every member, the last one first, and removes the directory if it
// is temporary. The error names the members that had to be killed; no member runs
// afterwards. A second Close does nothing.
func (f *Fleet) Close() error {
	f.mu.Lock()
	again := f.closed
	f.closed = true
	f.mu.Unlock()
	if again {
		return nil
	}

	var errs []error
	for _, p := range slices.Backward(f.Running()) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		errs = append(errs, p.Stop(ctx))
		cancel()
	}
	if f.o.Dir == "" {
		errs = append(errs, os.RemoveAll(f.dir))
	}
	return errors.Join(errs...)
}

// Abandon kills every member at once, and closes the fleet.
func (f *Fleet) Abandon() error {
	var errs []error
	for _, p := range slices.Backward(f.Running()) {
		errs = append(errs, p.Kill())
	}
	return errors.Join(append(errs, f.Close())...)
}
