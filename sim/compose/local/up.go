package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/sim/compose"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// up starts what does not run yet, in the order of the dependencies.
func (a *app) up(ctx context.Context) error {
	bin, err := filepath.Abs(a.bin)
	if err != nil {
		return err
	}
	a.bin = bin
	f, err := compose.Load(a.file, a.lookupEnv)
	if err != nil {
		return err
	}
	s, done, err := a.open()
	if err != nil {
		return err
	}
	defer done()
	ports, err := a.ports(s)
	if err != nil {
		return err
	}
	plan, err := f.Plan(a.dir, ports)
	if err != nil {
		return err
	}
	s.Ports = ports.Taken
	s.Processes = slices.DeleteFunc(s.Processes, func(p *started) bool { // the file has no such service any more
		return !p.alive() && !slices.ContainsFunc(plan, func(q compose.Process) bool { return q.Name == p.Name })
	})
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	count := 0
	for _, p := range plan {
		if old := s.find(p.Name); old != nil && old.alive() {
			continue
		}
		for other, healthy := range p.After {
			if healthy {
				if err := a.awaitHealth(ctx, s, s.find(other)); err != nil {
					return err
				}
			}
		}
		if err := a.launch(s, p); err != nil {
			return fmt.Errorf("start %s: %w", p.Name, err)
		}
		count++
	}
	for _, p := range s.Processes {
		if err := a.awaitHealth(ctx, s, p); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stdout, "%d of %d processes started; all of them are healthy\n\n", count, len(s.Processes))
	return a.print(ctx, s)
}

// ports goes on with the ports that were handed out before.
func (a *app) ports(s *state) (*compose.Ports, error) {
	p := &compose.Ports{Taken: s.Ports, Published: !a.freePorts}
	if !a.freePorts {
		next := a.basePort
		for _, port := range s.Ports {
			if port >= next && port < next+1000 {
				next = port + 1
			}
		}
		p.Next = func() (int, error) { next++; return next - 1, nil }
		return p, nil
	}
	const most = 64
	free, err := fleet.FreePorts(most)
	if err != nil {
		return nil, err
	}
	p.Next = func() (int, error) {
		if len(free) == 0 {
			return 0, fleet.ErrNoPort
		}
		port := free[0]
		free = free[1:]
		return port, nil
	}
	return p, nil
}

// environment is what every process inherits, besides its own settings. Those
// of the user's own shell (PD_..., proxies for HTTP) must not change the fleet.
func (a *app) environment(p compose.Process) []string {
	env := []string{"HOME=" + a.dir, "PD_SOCKET=" + a.socket(p.Name)}
	for _, name := range []string{"PATH", "TMPDIR", "GOMAXPROCS", "GOCOVERDIR"} {
		if v, ok := a.lookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, p.Env...)
}

// maxSocket is the length of a socket's path that every system takes.
const maxSocket = 100

// socket is where an agent is asked for its health. In its container it is the
// only one; here each has its own, in the directory unless that is too long a
// path for a socket.
func (a *app) socket(name string) string {
	path := a.path("run/" + name + ".sock")
	if len(path) > maxSocket {
		return ""
	}
	return path
}

// launch starts one process, in a session of its own, and writes it down.
func (a *app) launch(s *state, p compose.Process) error {
	path := filepath.Join(a.bin, p.Args[0])
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w; make build", err)
	}
	logPath := a.path("logs/" + p.Name + ".log")
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(path, p.Args[1:]...)
	cmd.Dir, cmd.Env = a.dir, a.environment(p)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	born, _ := birth(cmd.Process.Pid)
	now := &started{Process: p, PID: cmd.Process.Pid, Born: born, Log: logPath, isNew: true}
	now.Args = append([]string{path}, p.Args[1:]...)
	_ = cmd.Process.Release() // it belongs to nobody from now on
	if old := s.find(p.Name); old != nil {
		*old = *now
	} else {
		s.Processes = append(s.Processes, now)
	}
	return a.write(s)
}

// awaitHealth waits until a process is healthy, or running if it has no check.
// It gives up when any of those that were started ends.
func (a *app) awaitHealth(ctx context.Context, s *state, p *started) error {
	tick := time.NewTicker(4 * pollEvery)
	defer tick.Stop()
	var why error
	for {
		for _, other := range s.Processes {
			if !other.alive() && other.isNew {
				return fmt.Errorf("%s has ended; its last lines:\n%s", other.Name, other.tail())
			}
		}
		err := a.health(ctx, p)
		if err == nil {
			return nil
		}
		// A check that was under way when the time was over says nothing; the one
		// before has said what is wrong.
		if why == nil || ctx.Err() == nil {
			why = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not healthy: %w; its last lines:\n%s", p.Name, errors.Join(ctx.Err(), why), p.tail())
		case <-tick.C:
		}
	}
}

// tail is the end of the log.
func (p *started) tail() string {
	raw, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-10):], "\n    ")
}
