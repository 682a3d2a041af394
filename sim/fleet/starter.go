package fleet

import (
	"os/exec"
	"runtime"
)

// starter starts all children from one operating system thread, which runs as
// long as the fleet. Linux sends the parent death signal when the thread that
// started a child exits, not the process (prctl(2), PR_SET_PDEATHSIG): a child
// started from an ordinary goroutine could be killed because Go retired a thread.
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

// close ends the thread, which on Linux kills the remaining children.
func (s *starter) close() {
	close(s.calls)
	<-s.done
}
