package setup

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
)

// claim is the reservation of a port among the agents of this machine, until this agent exits: two
// agents that start at the same time find the same port free. The zero value reserves none. See
// lock.
type claim struct{ held io.Closer }

// take reserves a port for a use; it returns false if another agent has.
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

// Release releases what was reserved.
func (c *claim) Release() {
	if c.held != nil {
		_ = c.held.Close()
		c.held = nil
	}
}
