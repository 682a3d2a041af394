// Package target starts what is measured, as processes pinned to one core, and an etcd in
// which the engines are registered for our proxy. Lab.Close stops everything.
package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// Options are the options of a Lab.
type Options struct {
	BinDir   string // directory with our programs
	Core     string // core of the targets; "" does not pin them
	Files    int    // limit of descriptors of a target; 0 keeps that of this process
	KeepLogs bool   // Close keeps the directory with logs and generated configuration
}

// Lab owns the processes and their directory. It is not safe for concurrent use.
type Lab struct {
	o     Options
	fleet *fleet.Fleet
	dir   string
	n     int // of processes
}

// NewLab returns a Lab without processes.
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
	if o.Core != "" {
		if _, err := exec.LookPath("taskset"); err != nil {
			return nil, fmt.Errorf("pin targets: install util-linux, or use --pin off for a run without meaningful figures: %w", err)
		}
	}
	return &Lab{o: o, fleet: f, dir: dir}, nil
}

// Dir returns the directory of logs and configuration.
func (l *Lab) Dir() string { return l.dir }

// Close kills all processes.
func (l *Lab) Close() error {
	err := l.fleet.Abandon()
	if !l.o.KeepLogs {
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	return err
}

// Running is a target that serves.
type Running struct {
	Address string // host:port
	log     string // file of its output
	lab     *Lab
	process *fleet.Process
}

// PIDs returns its process and the descendants of it.
func (r *Running) PIDs() []int { return machine.Tree(r.process.PID()) }

// Stop stops the target; after 3 s it is killed.
func (r *Running) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = r.process.Stop(ctx) // reports that the process had to be killed
	if !r.lab.o.KeepLogs {
		_ = os.Remove(r.log)
	}
}

// Err returns an error with the end of the output if the target has ended.
func (r *Running) Err() error {
	select {
	case <-r.process.Done():
		return fmt.Errorf("the target ended: %s", tail(r.log))
	default:
		return nil
	}
}

// tail returns the end of a file.
func tail(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-2000):]))
}

// launch starts a program, and blocks until url answers with status 200. The shell is
// replaced by the program, so the process is that of the program.
func (l *Lab) launch(ctx context.Context, name, url string, argv []string) (*Running, error) {
	l.n++
	name = fmt.Sprintf("%s-%d", name, l.n)
	r := &Running{log: filepath.Join(l.dir, name+".log"), lab: l}
	script := `exec "$@" >>"$0" 2>&1`
	if l.o.Files > 0 {
		script = "ulimit -n " + strconv.Itoa(l.o.Files) + "; " + script
	}
	args := []string{"-c", script, r.log}
	if l.o.Core != "" {
		args = append(args, "taskset", "-c", l.o.Core)
	}
	p, err := l.fleet.Start(ctx, fleet.Spec{
		Name: name, Program: "/bin/sh", Args: append(args, argv...),
		Ready: func(ctx context.Context) error { return l.fleet.Get(ctx, url, nil) },
	})
	if err != nil {
		return nil, fmt.Errorf("%w; end of its output:\n%s", err, tail(r.log))
	}
	r.process = p
	return r, nil
}
