package zmq_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

func TestMain(m *testing.M) { leak.Main(m) }

const loopback = "tcp://127.0.0.1:0"

// listen binds a socket, and returns a channel of its peers' errors.
func listen(t *testing.T, kind zmq.Kind, endpoint string, b zmq.Bounds) (*zmq.Listener, <-chan error) {
	t.Helper()
	trouble := make(chan error, 64)
	l, err := zmq.Listen(t.Context(), kind, endpoint, b, func(_ string, err error) { trouble <- err })
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() }) // a test may have closed it
	return l, trouble
}

func receive(t *testing.T, l *zmq.Listener) zmq.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := l.Receive(ctx)
	require.NoError(t, err)
	return m
}

func reported(t *testing.T, trouble <-chan error) error {
	t.Helper()
	select {
	case err := <-trouble:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was said about the peer")
		return nil
	}
}

func endpointOf(l *zmq.Listener) string { return "tcp://" + l.Addr().String() }

func sender(t *testing.T, kind zmq.Kind, l *zmq.Listener) *zmqpeer.Sender {
	t.Helper()
	s, err := zmqpeer.NewSender(kind, endpointOf(l))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, l *zmq.Listener, bytes string) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	_, err = c.Write([]byte(bytes))
	require.NoError(t, err)
	return c
}

// TestLibzmq uses libzmq as the peer, over IPv4 and IPv6.
func TestLibzmq(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	for _, tc := range []struct {
		bound    zmq.Kind
		peer     string
		endpoint string
	}{
		{zmq.Router, "DEALER", loopback}, {zmq.Pull, "PUSH", loopback},
		{zmq.Router, "DEALER", "tcp://[::1]:0"},
	} {
		t.Run(tc.peer+" "+tc.endpoint, func(t *testing.T) {
			t.Parallel()
			l, trouble := listen(t, tc.bound, tc.endpoint, zmq.Bounds{})
			const count = 100
			peer := testkit.StartPython(t, python, "testdata/peer.py", tc.peer, endpointOf(l), strconv.Itoa(count))
			for i := range count {
				m := receive(t, l)
				require.Equal(t, strconv.Itoa(i), string(m.Frames[0]), "message %d is %q", i, m.Frames)
				require.False(t, tc.peer == "DEALER" && i == 0 && (len(m.Frames) != 2 || len(m.Frames[1]) != 300),
					"message %d has %d frames", i, len(m.Frames))
			}
			peer.End() // its end is no error
			_ = l.Close()
			if len(trouble) > 0 {
				t.Errorf("said of the peer: %v", <-trouble)
			}
		})
	}
}

// TestLibzmqReconnects: a peer that pings continues when the socket is available again.
func TestLibzmqReconnects(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	endpoint := "tcp://" + testkit.FreePort(t)
	l, _ := listen(t, zmq.Router, endpoint, zmq.Bounds{})
	testkit.StartPython(t, python, "testdata/peer.py", "DEALER", endpoint, "1")
	receive(t, l)
	require.NoError(t, l.Close())
	testkit.StartPython(t, python, "testdata/peer.py", "PUSH", endpoint, "3")
	l, _ = listen(t, zmq.Pull, endpoint, zmq.Bounds{})
	for range 3 {
		receive(t, l)
	}
}

func TestPeers_SendReceive(t *testing.T) {
	t.Parallel()
	for bound, kind := range map[zmq.Kind]zmq.Kind{zmq.Router: zmq.Dealer, zmq.Pull: zmq.Push} {
		endpoint := "tcp://" + testkit.FreePort(t)
		l, _ := listen(t, bound, endpoint, zmq.Bounds{})
		s := sender(t, kind, l)
		for i := range 3 {
			require.NoError(t, s.Send(t.Context(), []byte(strconv.Itoa(i))))
			assert.Equal(t, strconv.Itoa(i), string(receive(t, l).Frames[0]), "message %d", i)
		}
		require.NoError(t, l.Close())
		testkit.Eventually(t, 20*time.Second, func() error {
			if s.Send(t.Context(), []byte("lost")) == nil {
				return errors.New("a send without peers does not fail")
			}
			return nil
		})
		l, _ = listen(t, bound, endpoint, zmq.Bounds{})
		require.NoError(t, s.Send(t.Context(), []byte("again")))
		assert.Equal(t, "again", string(receive(t, l).Frames[0]), "after a new start")
	}
}

const greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

const ready = "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"

// TestBadPeers: invalid data from a peer ends its connection, and nothing else.
func TestBadPeers(t *testing.T) {
	t.Parallel()
	require.Equal(t, 64, len(greeting), "the greeting has %d bytes", len(greeting))
	l, trouble := listen(t, zmq.Router, loopback, zmq.Bounds{Bytes: 1000, Frames: 4})
	huge := "\x02\xff\xff\xff\xff\xff\xff\xff\xff"
	for name, tc := range map[string]struct {
		bytes string
		want  error
	}{
		"no greeting":           {"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + strings.Repeat("x", 64), nil},
		"another mechanism":     {strings.Replace(greeting, "NULL", "CURV", 1), nil},
		"a PUSH":                {greeting + "\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH", nil},
		"metadata cut short":    {greeting + "\x04\x0a\x05READY\xff123", nil},
		"a huge handshake":      {greeting + huge, zmq.ErrTooLarge},
		"a huge message":        {greeting + ready + huge, zmq.ErrTooLarge},
		"too long a message":    {greeting + ready + "\x02\x00\x00\x00\x00\x00\x00\x03\xe9", zmq.ErrTooLarge},
		"too much in two parts": {greeting + ready + "\x01\xff" + strings.Repeat("x", 255) + "\x02\x00\x00\x00\x00\x00\x00\x02\xea", zmq.ErrTooLarge},
		"too many frames":       {greeting + ready + strings.Repeat("\x01\x00", 5), zmq.ErrTooLarge},
	} {
		dial(t, l, tc.bytes)
		err := reported(t, trouble)
		assert.False(t, tc.want != nil && !errors.Is(err, tc.want), "%s: %v", name, err)
	}
	s := sender(t, zmq.Dealer, l)
	require.NoError(t, s.Send(t.Context(), []byte("good")))
	assert.Equal(t, "good", string(receive(t, l).Frames[0]), "after bad peers")
}

// TestConn_PongWithinMessage checks that a PONG between two frames of a message does
// not split the message: libzmq answers a PING after the frame that it is sending.
func TestConn_PongWithinMessage(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		peer, err := l.Accept()
		if err == nil {
			t.Cleanup(func() { _ = peer.Close() }) // its error is irrelevant
			_, err = peer.Write([]byte(greeting + "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB" +
				"\x01\x02kv" + "\x04\x05\x04PONG" + "\x01\x01a\x00\x01b" + "\x00\x04next"))
		}
		sent <- err
	}()
	c := connect(t, zmq.Sub, "tcp://"+l.Addr().String(), zmq.Bounds{})
	require.NoError(t, errors.Join(c.Ping(), <-sent, l.Close()))
	var got []string
	for range 3 {
		frames, err := c.Receive()
		require.NoError(t, err)
		got = append(got, string(bytes.Join(frames, []byte(" "))))
	}
	assert.Equal(t, []string{"", "kv a b", "next"}, got, "received")
}

// TestSilentPeers: silent peers do not delay others, and are eventually disconnected.
func TestSilentPeers(t *testing.T) {
	t.Parallel()
	l, trouble := listen(t, zmq.Pull, loopback, zmq.Bounds{Peers: 3, Handshake: 5 * time.Second})
	for range 2 {
		dial(t, l, greeting[:10])
	}
	s := sender(t, zmq.Push, l)
	require.NoError(t, s.Send(t.Context(), []byte("received")))
	receive(t, l)
	dial(t, l, "")
	var all []error
	for range 3 {
		all = append(all, reported(t, trouble))
	}
	assert.True(t, slices.ContainsFunc(all, func(err error) bool { return errors.Is(err, zmq.ErrTooManyPeers) }),
		"refused: %v", all)
	other := sender(t, zmq.Push, l)
	require.NoError(t, other.Send(t.Context(), []byte("in their place")))
	receive(t, l)
}

func TestClose(t *testing.T) {
	t.Parallel()
	l, _ := listen(t, zmq.Pull, loopback, zmq.Bounds{})
	s := sender(t, zmq.Push, l)
	require.NoError(t, s.Send(t.Context(), []byte("never received")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, l.Close())
	assert.ErrorIs(t, l.Close(), net.ErrClosed, "closed twice")
	_, err := l.Receive(t.Context())
	assert.ErrorIs(t, err, net.ErrClosed, "receive")
	l, _ = listen(t, zmq.Pull, loopback, zmq.Bounds{})
	_, err = l.Receive(ctx)
	assert.ErrorIs(t, err, context.Canceled, "receive")
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"tcp://*:36367": ":36367", "tcp://127.0.0.1:1": "127.0.0.1:1", "tcp://[::1]:2": "[::1]:2", "tcp://host:3": "host:3",
	} {
		got, err := zmq.ParseEndpoint(endpoint)
		assert.True(t, got == want && err == nil, "%s: %q, %v", endpoint, got, err)
	}
	for _, endpoint := range []string{"", "127.0.0.1:1", "tcp://host", "tcp://host:x", "tcp://host:65536", "tcp://:1", "ipc:///a", "tcp://::1:2"} {
		got, err := zmq.ParseEndpoint(endpoint)
		assert.ErrorIs(t, err, zmq.ErrEndpoint, "%s: %q", endpoint, got)
	}
}

// FuzzPeer: whatever a peer sends, the next one is served.
func FuzzPeer(f *testing.F) {
	f.Add([]byte(greeting + ready + "\x00\x02hi"))
	f.Add([]byte(greeting + "\x04\x0a\x05READY\xff123"))
	f.Add([]byte(greeting + ready + "\x04\x05\x04PING"))
	l, err := zmq.Listen(f.Context(), zmq.Router, loopback, zmq.Bounds{Bytes: 1000}, nil)
	require.NoError(f, err)
	f.Cleanup(func() { _ = l.Close() })
	f.Fuzz(func(t *testing.T, bytes []byte) {
		_ = dial(t, l, string(bytes)).Close() // its messages may or may not arrive
		s := sender(t, zmq.Dealer, l)
		require.NoError(t, s.Send(t.Context(), []byte("the next one")))
		for string(receive(t, l).Frames[0]) != "the next one" {
			continue
		}
		s.Close()
	})
}
