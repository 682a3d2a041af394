package fleet

import "syscall"

// childAttributes puts a child into a process group of its own, so that Ctrl-C
// on the terminal reaches the parent alone, and has the kernel kill it when
// the parent dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
