package testkit_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	leak.Main(m)
}

const soon = time.Minute

// echo starts a server that sends back the bytes that it receives, and returns its address.
func echo(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-done })
	return lis.Addr().String()
}

type line struct {
	t *testing.T
	net.Conn
}

func connect(t *testing.T, l *testkit.Link) line {
	t.Helper()
	c, err := net.Dial("tcp", l.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return line{t, c}
}

func (l line) say() {
	l.t.Helper()
	if _, err := l.Write([]byte("hello")); err != nil {
		l.t.Fatal(err)
	}
}

// hears reads five bytes, and returns an error if they do not arrive within the time.
func (l line) hears(within time.Duration) error {
	l.t.Helper()
	require.NoError(l.t, l.SetReadDeadline(time.Now().Add(within)))
	var buf [5]byte
	_, err := io.ReadFull(l, buf[:])
	return err
}

// A forked process has the port of a closed listener until its exec.
func TestLink_RestoreWaitsForThePort(t *testing.T) {
	t.Parallel()
	l := testkit.StartLink(t, echo(t))
	l.Refuse()
	var other net.Listener
	testkit.Eventually(t, soon, func() (err error) { // a process that is being forked may still have the port
		other, err = net.Listen("tcp", l.Address())
		return err
	})
	time.AfterFunc(silence, func() { _ = other.Close() })
	l.Restore()
	c := connect(t, l)
	c.t = t
	c.say()
	assert.NoError(t, c.hears(soon))
}

const silence = 50 * time.Millisecond

func TestLink(t *testing.T) {
	t.Parallel()
	server := echo(t)
	mustHear := func(c line) {
		t.Helper()
		c.say()
		require.NoError(t, c.hears(soon))
	}
	for _, tc := range []struct {
		name  string
		fault func(*testkit.Link)
		// expected error of an open connection: a timeout, or a reset
		standing error
		refused  bool
		after    bool // bytes sent during the fault arrive after Restore
	}{
		{"freeze", (*testkit.Link).Freeze, os.ErrDeadlineExceeded, false, true},
		{"one way out", func(l *testkit.Link) { l.OneWay(testkit.ToServer) }, os.ErrDeadlineExceeded, false, true},
		{"one way back", func(l *testkit.Link) { l.OneWay(testkit.ToClient) }, os.ErrDeadlineExceeded, false, true},
		{"half open", (*testkit.Link).HalfOpen, os.ErrDeadlineExceeded, false, false},
		{"cut", (*testkit.Link).Cut, syscall.ECONNRESET, false, false},
		{"reset", (*testkit.Link).Reset, syscall.ECONNRESET, false, false},
		{"refuse", (*testkit.Link).Refuse, nil, true, false},
		{"delay", func(l *testkit.Link) { l.Delay(time.Second) }, os.ErrDeadlineExceeded, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := testkit.StartLink(t, server)
			c := connect(t, l)
			c.t = t
			mustHear(c)
			tc.fault(l)
			_, err := c.Write([]byte("hello")) // a reset may be noticed here already
			if err == nil {
				err = c.hears(silence)
			} else if errors.Is(err, syscall.EPIPE) {
				err = syscall.ECONNRESET
			}
			assert.True(t, errors.Is(err, tc.standing), "during the fault: %v, want %v", err, tc.standing)
			if other, err := net.Dial("tcp", l.Address()); errors.Is(err, syscall.ECONNREFUSED) != tc.refused {
				t.Errorf("a new connection: %v", err)
			} else if err == nil {
				_ = other.Close()
			}
			l.Restore()
			if tc.after {
				assert.NoError(t, c.hears(soon), "what was held back does not arrive")
			}
			mustHear(connect(t, l))
		})
	}
}

// A server that is stopped and started again needs the same port. The system must not
// assign that port to a connection or a listener meanwhile.
func TestFreePort_OutsideSystemRange(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skip("only Linux reports which ports it hands out")
	}
	var low, high int
	if _, err := fmt.Sscan(string(raw), &low, &high); err != nil {
		t.Fatal(err)
	}
	for what, address := range map[string]string{
		"a free port": testkit.FreePort(t), "a link": testkit.StartLink(t, "127.0.0.1:1").Address(),
	} {
		var port int
		if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil || low <= port && port <= high {
			t.Errorf("%s has %s, the system hands out %d to %d; %v", what, address, low, high, err)
		}
	}
}
