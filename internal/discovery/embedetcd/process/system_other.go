//go:build !linux

package process

import (
	"os"
	"syscall"
)

func itself() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return os.Args[0]
}

// attributes: the end of its standard input ends the etcd with its proxy.
func attributes() *syscall.SysProcAttr { return nil }

func raisePriority() {}
