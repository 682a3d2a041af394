package fleet

import (
	"os/exec"
	"runtime"
)

// starter starts all children from one operating system thread that lives as
// long as the fleet. Linux ties the death signal of a child to the thread that
// started it, not to the process: from an ordinary goroutine a child could be
// killed because Go retired a thread.
type starter struct {
	calls chan startCall
	done  chan struct{}
}

type startCall struct {
	cmd   *exec.Cmd
	reply chan error
}

func newStarter() *starter {
	s := &starter{calls: make(chan startCall), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for call := range s.calls {
			call.reply <- call.cmd.Start()
		}
	}()
	return s
}

func (s *starter) start(cmd *exec.Cmd) error {
	call := startCall{cmd, make(chan error, 1)}
	s.calls <- call
	return <-call.reply
}

// close ends the thread; on Linux that kills children that are left.
func (s *starter) close() {
	close(s.calls)
	<-s.done
}
