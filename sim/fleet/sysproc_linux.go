package fleet

import "syscall"

// childAttributes puts a child into a new process group, so that Ctrl-C on the
// terminal reaches only the parent, and has the kernel kill it when the parent
// dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
