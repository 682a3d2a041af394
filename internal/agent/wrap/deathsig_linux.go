package wrap

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startDeathsig starts a child that gets SIGTERM when this program exits. Linux sends
// that signal when the thread that started the child ends, and Go may end threads, so
// one thread is reserved until free is called.
//
// The signal is SIGTERM because only the child gets it: vLLM stops its workers when it
// exits on SIGTERM, and leaves them when it is killed.
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
