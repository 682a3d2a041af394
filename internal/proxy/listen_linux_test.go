package proxy

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/internal/transport/sock"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// A client whose machine has lost power acknowledges nothing: its connection ends long before Linux gives up
// its retransmissions, but no earlier than a slow reader is cut.
func TestClientConn_LimitsSilence(t *testing.T) {
	t.Parallel()
	ln := testkit.Listen(t)
	accept := func(idle time.Duration) (client *net.TCPConn, c *sock.Conn) {
		t.Helper()
		dialled, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { dialled.Close() })
		accepted, err := quickListener{ln, idle}.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { accepted.Close() })
		return dialled.(*net.TCPConn), accepted.(*clientConn).Conn
	}
	for idle, want := range map[time.Duration]int{time.Millisecond: 60_000, 10 * time.Minute: 1_200_000, 168 * time.Hour: 1_209_600_000} {
		_, c := accept(idle)
		var got int
		var failed error
		err := c.Raw().Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
		err = errors.Join(err, failed)
		assert.True(t, err == nil && got == want, "with --idle-timeout %s: %d ms, want %d, %v", idle, got, want, err)
	}

	client, c := accept(0)
	sock.LimitSilence(c.Raw(), time.Second)
	raw, err := client.SyscallConn()
	require.NoError(t, err)
	var failed error
	err = raw.Control(func(fd uintptr) { // drops every packet to the client
		none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
	})
	require.NoError(t, errors.Join(err, failed))
	_, err = c.Write([]byte("data: {}\n\n"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ETIMEDOUT, "Read")
}
