package conns_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/conns"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// pair is a listener and both ends of a connection to it.
func pair(t *testing.T) (l *conns.Listener, served, client net.Conn) {
	t.Helper()
	raw, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l = conns.Track(raw)
	t.Cleanup(l.ResetAll)
	client, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", raw.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.SetDeadline(time.Now().Add(20*time.Second)))
	served, err = l.Accept()
	require.NoError(t, err)
	return l, served, client
}

// end is how a connection ends for its client.
func end(c net.Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

func TestAllEndByReset(t *testing.T) {
	t.Parallel()
	l, _, client := pair(t)
	l.ResetAll()
	if err := end(client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("it ended by %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener goes on: %v", err)
	}
}

func TestOneEndsByReset(t *testing.T) {
	t.Parallel()
	_, served, client := pair(t)
	conns.SetReset(served)
	_ = served.Close()
	if err := end(client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("it ended by %v", err)
	}
}
