package target

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// Options says where things are and where they run.
type Options struct {
	// BinDir has our programs, proxy among them.
	BinDir string
	// Self is the benchmark's own program, which also serves as the floor.
	Self string
	// TargetCore is what targets are pinned to. Empty pins to nothing.
	TargetCore string
	// Files is the limit of descriptors that targets get.
	Files int
	// KeepLogs keeps the directory with logs and generated configuration.
	KeepLogs bool
}

// Lab owns processes and a directory.
type Lab struct {
	o     Options
	fleet *fleet.Fleet
	dir   string
	http  *http.Client
	n     int

	collector *http.Server // of traces; nil: none was needed
}

// NewLab prepares; nothing runs yet. Close must be called.
func NewLab(o Options) (*Lab, error) {
	dir, err := os.MkdirTemp("", "pdmesh-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	f, err := fleet.New(fleet.Options{BinDir: o.BinDir, Dir: dir})
	if err != nil {
		return nil, err
	}
	if o.TargetCore != "" {
		if _, err := exec.LookPath("taskset"); err != nil {
			return nil, fmt.Errorf("pinning needs taskset (util-linux): %w; or run with --pin=off, and the figures mean little", err)
		}
	}
	return &Lab{o: o, fleet: f, dir: dir, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}, nil
}

// Dir is where logs and configuration are.
func (l *Lab) Dir() string { return l.dir }

// Close ends every process.
func (l *Lab) Close() error {
	err := l.fleet.Abandon()
	if l.collector != nil {
		err = errors.Join(err, l.collector.Close())
	}
	if !l.o.KeepLogs {
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	return err
}

// Running is a target that answers.
type Running struct {
	Address string
	// Log is the file that its output goes to, access lines among it.
	Log string
	// Admin is the address of its profiles.
	Admin   string
	lab     *Lab
	process *fleet.Process
}

// PIDs are its processes.
func (r *Running) PIDs() []int { return machine.Tree(r.process.PID()) }

// stopTimeout is how long a target may take to end by itself.
const stopTimeout = 3 * time.Second

// Stop ends it, in one way or another.
func (r *Running) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	// One that had to be killed is no worse for it: the next one is another.
	_ = r.process.Stop(ctx)
	if !r.lab.o.KeepLogs {
		_ = os.Remove(r.Log)
	}
}

// Alive reports whether it still runs.
func (r *Running) Alive() bool {
	select {
	case <-r.process.Done():
		return false
	default:
		return true
	}
}

// Tail is the end of its output, for messages.
func (r *Running) Tail() string { return tail(r.Log) }

func tail(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-2000):]))
}

// launch starts a program on a core, its output appended to a file, and waits
// until url answers with 200. The shell's part ends before the program begins:
// the process is the program's.
func (l *Lab) launch(ctx context.Context, name, core, url string, argv []string) (*Running, error) {
	l.n++
	name = fmt.Sprintf("%s-%d", name, l.n)
	r := &Running{Log: filepath.Join(l.dir, name+".log"), lab: l}
	script := `exec "$@" >>"$0" 2>&1`
	if l.o.Files > 0 {
		script = "ulimit -n " + strconv.Itoa(l.o.Files) + "; " + script
	}
	args := []string{"-c", script, r.Log}
	if core != "" {
		args = append(args, "taskset", "-c", core)
	}
	p, err := l.fleet.Start(ctx, fleet.Spec{
		Name: name, Program: "/bin/sh", Args: append(args, argv...),
		Ready: func(ctx context.Context) error { return l.ask(ctx, url) },
	})
	if err != nil {
		return nil, fmt.Errorf("%w; its output ends:\n%s", err, tail(r.Log))
	}
	r.process = p
	return r, nil
}

func (l *Lab) ask(ctx context.Context, url string) error {
	if url == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := l.http.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers with status %d", url, res.StatusCode)
	}
	return nil
}
