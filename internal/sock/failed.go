package sock

import (
	"net"
	"os"
)

// Failed gives the error of a system call the form that it has in package net.
func (c *Conn) Failed(what string, err error) error {
	return &net.OpError{Op: what, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(what, err)}
}
