package zmq_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

const events = "testdata/events.py"

func connect(t *testing.T, kind zmq.Kind, endpoint string, b zmq.Bounds) *zmq.Conn {
	t.Helper()
	c, err := zmq.Dial(t.Context(), kind, endpoint, b, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // a test may have closed it
	return c
}

func number(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// message returns the i-th message of events.py.
func message(i int) [][]byte {
	return [][]byte{[]byte("kv@1"), number(uint64(i)), bytes.Repeat([]byte("x"), i*1000+1)} //nolint:gosec // a small number
}

func same(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

const large = 4 << 20

// TestSubscribe: libzmq publishes, bound and connected, and only messages of the topic arrive.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	const count = 300
	t.Run("connected", func(t *testing.T) {
		t.Parallel()
		pub := testkit.StartPython(t, python, events, "PUB", loopback, strconv.Itoa(count))
		c := connect(t, zmq.Sub, pub.Line(), zmq.Bounds{Bytes: large})
		require.NoError(t, c.Subscribe("kv"))
		for i := range count {
			m, err := c.Receive()
			require.True(t, err == nil && same(m, message(i)), "message %d: %d frames, %v", i, len(m), err)
		}
		pub.End()
		m, err := c.Receive()
		assert.Error(t, err, "after the publisher's end: %q", m)
	})
	t.Run("bound", func(t *testing.T) {
		t.Parallel()
		received := make(chan [][]byte, 1)
		sub, err := zmq.Bind(t.Context(), zmq.Sub, loopback, zmq.Bounds{Bytes: large}, nil, func(_ <-chan struct{}, peer *zmq.Conn) error {
			if err := peer.Subscribe(""); err != nil {
				return err
			}
			m, err := peer.Receive()
			if err == nil {
				received <- m
			}
			return err
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = sub.Close() })
		pub, err := zmqpeer.PublishTo("tcp://"+sub.Addr().String(), count)
		require.NoError(t, err)
		t.Cleanup(func() { _ = pub.Close() }) // its error is irrelevant
		testkit.EventuallyEqual(t, 20*time.Second, pub.Subscribers, 1, "no subscriber")
		pub.Send(message(1)...)
		m := <-received
		assert.True(t, same(m, message(1)), "%q", m)
	})
}

// TestPublish: libzmq subscribes to a Publisher of this package.
func TestPublish(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	const count = 100
	pub, err := zmqpeer.Publish(t.Context(), loopback, 2*count, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pub.Close() }) // its error is irrelevant
	endpoint := "tcp://" + pub.Addr().String()
	script := testkit.StartPython(t, python, events, "SUB", endpoint, strconv.Itoa(count))
	ours := connect(t, zmq.Sub, endpoint, zmq.Bounds{Bytes: large})
	require.NoError(t, ours.Subscribe(""))
	testkit.EventuallyEqual(t, 20*time.Second, pub.Subscribers, 2)
	for i := range count {
		pub.Send([]byte("other"), number(0), nil)
		pub.Send(message(i)...)
	}
	for i := range count {
		require.Equal(t, fmt.Sprintf("4 8 %d", i*1000+1), script.Line(), "libzmq")
		for _, want := range [][][]byte{{[]byte("other"), number(0), nil}, message(i)} {
			if m, err := ours.Receive(); err != nil || !same(m, want) {
				t.Fatalf("%d frames, %v", len(m), err)
			}
		}
	}
}

// TestPublisher_SlowSubscriber: a subscriber that does not read loses messages; other subscribers do not.
func TestPublisher_SlowSubscriber(t *testing.T) {
	t.Parallel()
	pub, err := zmqpeer.Publish(t.Context(), loopback, 4, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pub.Close() }) // its error is irrelevant
	endpoint := "tcp://" + pub.Addr().String()
	for range 2 {
		c := connect(t, zmq.Sub, endpoint, zmq.Bounds{Bytes: large})
		require.NoError(t, c.Subscribe(""))
	}
	reader := connect(t, zmq.Sub, endpoint, zmq.Bounds{Bytes: large})
	require.NoError(t, reader.Subscribe("a"))
	testkit.EventuallyEqual(t, 20*time.Second, pub.Subscribers, 3)
	for range 100 { // far more than socket buffers hold
		pub.Send([]byte("b"), make([]byte, large/2))
	}
	pub.Send([]byte("a"))
	if m, err := reader.Receive(); err != nil || string(m[0]) != "a" {
		t.Errorf("%q, %v", m, err)
	}
}

// TestReplay: libzmq answers our DEALER, and queries our ROUTER.
func TestReplay(t *testing.T) {
	t.Parallel()
	python := testkit.PythonWithZMQ(t)
	const count = 300
	end := [][]byte{{}, {}, bytes.Repeat([]byte{0xff}, 8), {}}
	t.Run("DEALER", func(t *testing.T) {
		t.Parallel()
		router := testkit.StartPython(t, python, events, "ROUTER", loopback, strconv.Itoa(count))
		c := connect(t, zmq.Dealer, router.Line(), zmq.Bounds{Bytes: large})
		for _, from := range []int{7, 0} {
			if err := c.Send(nil, number(uint64(from))); err != nil { //nolint:gosec // a small number
				t.Fatal(err)
			}
			for i := from; i <= count; i++ {
				want := end
				if i < count {
					want = append([][]byte{{}}, message(i)...)
				}
				m, err := c.Receive()
				require.True(t, err == nil && same(m, want), "answer %d: %d frames, %v", i, len(m), err)
			}
		}
	})
	t.Run("ROUTER", func(t *testing.T) {
		t.Parallel()
		l, _ := listen(t, zmq.Router, loopback, zmq.Bounds{})
		asker := testkit.StartPython(t, python, events, "REPLAY", endpointOf(l), "0")
		m := receive(t, l)
		require.True(t, same(m.Frames, [][]byte{{}, number(0)}), "asked %q", m.Frames)
		for i := range 100 {
			require.NoError(t, m.Answer(append([][]byte{{}}, message(i)...)...))
		}
		require.NoError(t, m.Answer(end...))
		for i := range 100 {
			require.Equal(t, fmt.Sprintf("0 4 8 %d", i*1000+1), asker.Line(), "libzmq")
		}
		assert.Equal(t, "0 0 8 0", asker.Line(), "the end came as")
	})
}

// TestDialEnds: a context ends a handshake, Close ends a Receive,
// and a peer that announces too large a message is disconnected.
func TestDialEnds(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	silent, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() }) // its error is irrelevant
	_, err = zmq.Dial(t.Context(), zmq.Sub, "tcp://"+silent.Addr().String(),
		zmq.Bounds{Handshake: 50 * time.Millisecond}, nil)
	assert.Error(t, err, "a peer that says nothing was taken")
	_, err = zmq.Dial(t.Context(), zmq.Router, loopback, zmq.Bounds{}, nil)
	assert.Error(t, err, "a ROUTER connected")
	pub, err := zmqpeer.Publish(t.Context(), loopback, 4, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pub.Close() }) // its error is irrelevant
	endpoint := "tcp://" + pub.Addr().String()
	_, err = zmq.Dial(t.Context(), zmq.Dealer, endpoint, zmq.Bounds{}, nil)
	assert.Error(t, err, "a DEALER was taken by a PUB")
	c := connect(t, zmq.Sub, endpoint, zmq.Bounds{Bytes: 1000})
	require.NoError(t, c.Subscribe(""))
	testkit.EventuallyEqual(t, 20*time.Second, pub.Subscribers, 1, "no subscriber")
	pub.Send(make([]byte, 500), make([]byte, 501))
	_, err = c.Receive()
	assert.ErrorIs(t, err, zmq.ErrTooLarge, "above the bounds")
	ended := make(chan error)
	other := connect(t, zmq.Sub, endpoint, zmq.Bounds{})
	go func() {
		_, err := other.Receive()
		ended <- err
	}()
	require.NoError(t, other.Close())
	assert.ErrorIs(t, <-ended, net.ErrClosed, "after Close")
}
