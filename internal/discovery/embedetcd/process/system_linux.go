package process

import (
	"os"
	"syscall"
)

// itself is this program. Its file may have been replaced by a newer one since it
// was started; this link still leads to the one that runs.
func itself() string {
	const link = "/proc/self/exe"
	if _, err := os.Stat(link); err == nil {
		return link
	}
	return os.Args[0]
}

// attributes let the kernel end the etcd with its proxy, however that ends.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// raisePriority gets this thread, and what it starts, a larger share of a busy
// processor, where that is allowed: etcd needs little, and leases end if it gets
// nothing for seconds.
func raisePriority() {
	const more = 5
	if left, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil { // 20 less the niceness
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 20-left-more)
	}
}
