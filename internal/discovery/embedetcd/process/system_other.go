//go:build !linux

package process

import (
	"os"
	"syscall"
)

func executable() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return os.Args[0]
}

// attributes returns nil: the etcd exits at the end of its standard input, when its proxy ends.
func attributes() *syscall.SysProcAttr { return nil }

func raisePriority() {}
