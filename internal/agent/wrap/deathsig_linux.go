package wrap

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startDeathsig starts a child that gets SIGTERM when this program dies. Linux
// sends that signal when the thread ends that started the child, and Go ends
// threads; so one does nothing else until free is called.
//
// It is SIGTERM because only the child itself gets it: a vLLM that ends in
// order takes its workers along, one that is killed leaves them.
func startDeathsig(cmd *exec.Cmd, start func() error) (free func(), err error) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	started, ended, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := start()
		started <- err
		if err == nil {
			<-ended
		}
	}()
	if err := <-started; err != nil {
		<-done
		return nil, err
	}
	return func() { close(ended); <-done }, nil
}
