package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// asInFile means the grace period of each service in the file.
const asInFile time.Duration = -1

// down ends what runs, those first that others are needed by: an agent signs off
// while etcd is there.
func (a *app) down(ctx context.Context, grace time.Duration, volumes bool) error {
	s, done, err := a.open()
	if err != nil {
		return err
	}
	defer done()
	top := 0
	for _, p := range s.Processes {
		top = max(top, p.Level)
	}
	ended, killed := 0, 0
	for level := top; level >= 0; level-- {
		var running []*started
		for _, p := range s.Processes {
			if p.Level == level && p.alive() {
				running = append(running, p)
			}
		}
		n, err := a.end(ctx, running, grace)
		if err != nil {
			return err
		}
		ended, killed = ended+len(running), killed+n
	}
	said := ""
	if killed > 0 {
		said = fmt.Sprintf(", %d of them killed after their grace", killed)
	}
	fmt.Fprintf(a.stdout, "%d processes ended%s\n", ended, said)
	s.Processes = nil
	if volumes {
		s.Ports = nil
		if err := errors.Join(os.RemoveAll(a.path("volumes")), os.RemoveAll(a.path("logs"))); err != nil {
			return err
		}
	}
	return a.write(s)
}

// end ends processes together and reports how many had to be killed.
func (a *app) end(ctx context.Context, list []*started, grace time.Duration) (killed int, err error) {
	begin := time.Now()
	if grace != 0 {
		for _, p := range list {
			if err := send(p, syscall.SIGTERM); err != nil {
				return killed, err
			}
		}
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	late := map[*started]bool{}
	for {
		left := 0
		for _, p := range list {
			if !p.alive() {
				continue
			}
			left++
			limit := grace
			if grace == asInFile {
				limit = p.Grace
			}
			if late[p] || time.Since(begin) < limit {
				continue
			}
			late[p] = true
			if err := send(p, syscall.SIGKILL); err != nil {
				return len(late), err
			}
		}
		if left == 0 {
			return len(late), nil
		}
		select {
		case <-ctx.Done():
			return len(late), fmt.Errorf("interrupted; %d processes still run", left)
		case <-tick.C:
		}
	}
}

// send reaches the process that was started and no other.
func send(p *started, sig syscall.Signal) error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s (pid %d): %w", p.Name, p.PID, err)
	}
	return nil
}
