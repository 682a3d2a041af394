package process

import (
	"os"
	"syscall"
)

// executable returns the path of this program. Its file may have been replaced since it was started;
// /proc/self/exe still refers to the running one.
func executable() string {
	const link = "/proc/self/exe"
	if _, err := os.Stat(link); err == nil {
		return link
	}
	return os.Args[0]
}

// attributes makes the kernel kill the etcd when its proxy ends, even if the proxy is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// raisePriority raises the scheduling priority of this thread, and of the processes that it
// starts, if that is allowed: etcd needs little CPU time, and leases expire if it does not run
// for seconds.
func raisePriority() {
	const more = 5
	if left, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil { // 20 less the niceness
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 20-left-more)
	}
}
