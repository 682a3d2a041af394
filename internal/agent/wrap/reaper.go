package wrap

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Reaper reaps the orphans that the kernel assigns to this program, so that they do not
// stay as zombies. It does not reap children that were started through it; their starter
// waits for them. All processes of the program must be started through it.
type Reaper struct {
	mu  sync.Mutex // guards own; held while a child starts, so that it is known before it can end
	own map[int]bool

	kick chan struct{}
}

// NewReaper makes a Reaper; Run does the work.
func NewReaper() *Reaper { return &Reaper{own: make(map[int]bool), kick: make(chan struct{}, 1)} }

// reapPoll is the polling interval, because several exits may cause only one SIGCHLD.
const reapPoll = time.Second

// Run reaps orphans until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	tick := time.NewTicker(reapPoll)
	defer tick.Stop()
	for {
		for r.collect() {
		}
		select {
		case <-ctx.Done():
			return
		case <-died:
		case <-r.kick:
		case <-tick.C:
		}
	}
}

// collect reaps one orphan. It reports whether there may be more.
func (r *Reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid := peekDead()
	if pid <= 0 || r.own[pid] {
		return false // a child of ours hides the others until its starter has waited for it
	}
	got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	return got == pid && err == nil
}

func (r *Reaper) start(cmd *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	r.own[cmd.Process.Pid] = true
	return nil
}

func (r *Reaper) forget(pid int) {
	r.mu.Lock()
	delete(r.own, pid)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}
