package agentctl_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
)

// Only a socket that refuses connections belongs to an agent that has ended. An
// unreachable one may belong to a busy agent, and the new agent may be about to stop.
func TestListen_KeepsSocketInUse(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agent.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	require.NoError(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)))
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := agentctl.Listen(ended, path); !errors.Is(err, context.Canceled) {
		t.Errorf("a start that was interrupted: %v", err)
	}
	for err == nil { // until the backlog of the listener is full
		var conn net.Conn
		dctx, cancel := context.WithTimeout(t.Context(), time.Second)
		conn, err = (&net.Dialer{}).DialContext(dctx, "unix", path)
		cancel()
		if err == nil {
			defer conn.Close()
		}
	}
	_, err = agentctl.Listen(t.Context(), path)
	assert.Error(t, err, "the socket of a busy agent was replaced")
	_, err = os.Lstat(path)
	assert.NoError(t, err, "the socket is gone")
}
