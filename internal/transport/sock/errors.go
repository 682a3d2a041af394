package sock

import (
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
)

// Exhausted reports whether a connection could not be made because this process or machine
// is out of file descriptors or memory. Such an error does not depend on the peer.
func Exhausted(err error) bool {
	shortages := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
	return slices.ContainsFunc(shortages, func(is error) bool { return errors.Is(err, is) })
}

// OpError wraps the error of a system call in the same way as package net.
func (c *Conn) OpError(what string, err error) error {
	return &net.OpError{Op: what, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(what, err)}
}
