package setup

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
)

// claim reserves a port among the agents of this machine until this agent exits; otherwise two agents
// that start at the same time could choose the same free port. The zero value reserves no port. It
// works like lock in package program.
type claim struct{ held io.Closer }

// take reserves a port for a use; it returns false if another agent has reserved it.
func (c *claim) take(use string, port int) bool {
	if runtime.GOOS != "linux" {
		return true
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", fmt.Sprintf("@pd-agent-%s-%d", use, port))
	if err != nil {
		return false
	}
	c.held = l
	return true
}

// Release releases the reserved port, if any.
func (c *claim) Release() {
	if c.held != nil {
		_ = c.held.Close()
		c.held = nil
	}
}
