//go:build unix && !linux

package fleet

import "syscall"

// childAttributes puts a child into a new process group, so that Ctrl-C on the
// terminal reaches only the parent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
