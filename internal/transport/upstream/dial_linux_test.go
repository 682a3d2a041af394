package upstream_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// lossy is an engine behind a network that loses packets.
type lossy struct {
	t    *testing.T
	ln   *net.TCPListener
	port int
}

// newLossy starts an engine that answers one request on each connection.
func newLossy(t *testing.T) *lossy {
	t.Helper()
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // Multipath TCP sockets accept no filter
	ln, err := plain.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	l := &lossy{t: t, ln: ln.(*net.TCPListener), port: ln.Addr().(*net.TCPAddr).Port}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				if _, _, err := readRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
				}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return l
}

// lose makes the kernel drop the packets from a port to the listening socket; 0 for any port.
func (l *lossy) lose(from int) {
	l.t.Helper()
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 0}, // the source port, first in the TCP header
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(from), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
	}
	if from == 0 {
		program = program[2:3]
	}
	raw, err := l.ln.SyscallConn()
	require.NoError(l.t, err)
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	require.NoError(l.t, errors.Join(err, set))
}

// connecting returns the ports of the sockets that wait for the engine's SYN-ACK.
func (l *lossy) connecting() (ports []int) {
	l.t.Helper()
	table := testkit.ReadFile(l.t, "/proc/thread-self/net/tcp")
	// The table may have tens of thousands of lines; splitting all would take longer than a dial.
	const synSent = "02"
	lines := strings.Split(string(table), fmt.Sprintf(" 0100007F:%04X %s ", l.port, synSent))
	for _, before := range lines[:len(lines)-1] {
		port, err := strconv.ParseUint(before[strings.LastIndexByte(before, ':')+1:], 16, 16)
		require.NoError(l.t, err)
		ports = append(ports, int(port))
	}
	return ports
}

// A lost SYN does not fail the dial: another connection is tried before the timeout.
func TestDial_LostSYN(t *testing.T) {
	t.Parallel()
	if last := upstream.NewDialer(upstream.Options{}).LastTry(); last < 500*time.Millisecond || last > 700*time.Millisecond {
		t.Errorf("the last try begins after %s of the default second", last)
	}
	forEachDialing(t, func(t *testing.T, open opener) {
		l := newLossy(t)
		l.lose(0)
		c := open(t, upstream.Options{ConnectTimeout: time.Minute})
		got := make(chan error, 1)
		go func() {
			_, b, err := fetch(t.Context(), c, &upstream.Request{Instance: instanceAt(l.ln.Addr().String()), Method: http.MethodGet, Path: "/", Header: http.Header{}})
			if err == nil && b != "ok" {
				err = errors.New(b)
			}
			got <- err
		}()
		var first []int
		testkit.Eventually(t, time.Minute, func() error {
			if first = l.connecting(); len(first) == 0 && len(got) == 0 {
				return errors.New("no connection attempt")
			}
			return nil
		})
		if len(first) > 0 {
			l.lose(first[0]) // permanently, the packets of one connection only
		}
		require.NoError(t, <-got)
	})
}

// A dial without an answer is a timeout, and leaks no socket.
func TestDial_Unanswered(t *testing.T) {
	t.Parallel()
	forEachDialing(t, func(t *testing.T, open opener) {
		l := newLossy(t)
		l.lose(0)
		_, e := do(t, open(t, upstream.Options{ConnectTimeout: 200 * time.Millisecond}), instanceAt(l.ln.Addr().String()))
		if e == nil || e.Stage != upstream.StageNotConnected || !e.Timeout() || e.Refused() || e.MaybeTaken {
			t.Fatalf("%+v", e)
		}
		testkit.Until(t, time.Minute, l.connecting, func(ports []int) bool { return len(ports) == 0 })
	})
}

// Either limit ends a connection that a firewall has dropped: keep-alives while nothing
// is sent, and the timeout of unacknowledged bytes after a request was sent.
func TestDialer_LimitsSilence(t *testing.T) {
	t.Parallel()
	c, err := upstream.NewDialer(upstream.Options{}).DialContext(t.Context(), "tcp", newLossy(t).ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	for name, want := range map[int]int{unix.TCP_KEEPIDLE: 15, unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: 9, unix.TCP_USER_TIMEOUT: 60_000} {
		var got int
		var failed error
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) })
		err = errors.Join(err, failed)
		assert.True(t, err == nil && got == want, "option %d: %d, want %d, %v", name, got, want, err)
	}
}
