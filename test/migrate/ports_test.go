package migrate_test

import (
	"strconv"
	"syscall"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
)

// hold finds a free port and reserves it with a bound socket that does not listen: parallel tests choose
// other ports, and connections are refused as if the port were unused.
func (s *site) hold() string {
	s.t.Helper()
	for range 50 {
		free, err := fleet.FreePorts(1)
		require.NoError(s.t, err)
		syscall.ForkLock.RLock() // a process started between the two calls would keep the socket
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err == nil {
			syscall.CloseOnExec(fd)
		}
		syscall.ForkLock.RUnlock()
		require.NoError(s.t, err)
		if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: free[0], Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			_ = syscall.Close(fd) // another process was faster
			continue
		}
		port := strconv.Itoa(free[0])
		s.held[port] = fd
		return port
	}
	s.t.Fatal("no port is free")
	return ""
}

// release frees a held port so that its user can listen on it.
func (s *site) release(port string) {
	if fd, ok := s.held[port]; ok {
		delete(s.held, port)
		syscall.ForkLock.RLock() // a process that is being forked has a copy until its exec
		err := syscall.Close(fd)
		syscall.ForkLock.RUnlock()
		assert.NoError(s.t, err, "release port %s", port)
	}
}
