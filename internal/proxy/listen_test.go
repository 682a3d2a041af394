package proxy

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// A read that ends long after its deadline is a sign of a suspended process: data
// that the client has sent is read first. Any other deadline ends a read as usual.
func TestClientConn_DeadlineAfterSuspension(t *testing.T) {
	t.Parallel()
	ln := testkit.Listen(t)
	client, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	c, err := quickListener{Listener: ln}.Accept()
	require.NoError(t, err)
	defer c.Close()
	read := func(want error) {
		t.Helper()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("Read: %v, want %v", err, want)
		}
	}
	deadline := func(at time.Time) {
		t.Helper()
		require.NoError(t, c.SetReadDeadline(at))
	}
	deadline(time.Now().Add(10 * time.Millisecond))
	read(os.ErrDeadlineExceeded)

	ours := c.(*clientConn)
	require.False(t, ours.due.IsZero(), "the deadline is not known")
	ours.due = ours.due.Add(-time.Minute) // as if the read had ended a minute late
	_, err = client.Write([]byte("xyz"))
	require.NoError(t, err)
	read(nil)

	deadline(time.Unix(1, 0)) // as net/http ends a pending read
	read(os.ErrDeadlineExceeded)
	deadline(time.Time{})
	read(nil)
}

// A write blocks until the client reads on; only a bounded part
// of a large socket buffer is used for unsent data.
func TestClientConn_LimitsUnsent(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("an option of Linux")
	}
	ln := testkit.Listen(t)
	client, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	const window = 64 << 10
	require.NoError(t, client.(*net.TCPConn).SetReadBuffer(window))
	c, err := quickListener{Listener: ln}.Accept()
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
	n, err := c.Write(make([]byte, 16<<20))
	assert.True(t, errors.Is(err, os.ErrDeadlineExceeded) && n <= 4*window+512<<10,
		"%d bytes were taken for a client that reads nothing, %v", n, err)
}
