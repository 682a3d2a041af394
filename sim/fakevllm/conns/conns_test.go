package conns_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/conns"
)

// pair is a listener and both ends of a connection to it.
func pair(t *testing.T) (l *conns.Listener, served, client net.Conn) {
	t.Helper()
	raw, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = conns.Track(raw)
	t.Cleanup(l.ResetAll)
	if client, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", raw.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := client.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if served, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
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
