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
	mu       sync.Mutex // guards children; held while a child starts, so that it is known before it can end
	children map[int]bool

	wake chan struct{}
}

// NewReaper makes a Reaper; Run does the work.
func NewReaper() *Reaper { return &Reaper{children: make(map[int]bool), wake: make(chan struct{}, 1)} }

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
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// collect reaps one orphan. It reports whether there may be more.
func (r *Reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid := peekDead()
	if pid <= 0 || r.children[pid] {
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
	r.children[cmd.Process.Pid] = true
	return nil
}

func (r *Reaper) forget(pid int) {
	r.mu.Lock()
	delete(r.children, pid)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
