package kvevents_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// publisher has an engine's two sockets, and the batches that it keeps for replay.
type publisher struct {
	pub    *zmqpeer.Publisher
	router *zmq.Listener
	frames int // in each message of a replay, without the empty one

	mu   sync.Mutex
	next uint64
	kept map[uint64][]byte
}

func publish(t *testing.T, frames int, endpoint, replay string) *publisher {
	t.Helper()
	p := &publisher{frames: frames, kept: map[uint64][]byte{}}
	var err error
	p.pub, err = zmqpeer.Publish(t.Context(), endpoint, 1000, nil)
	require.NoError(t, err)
	p.router, err = zmq.Listen(t.Context(), zmq.Router, replay, zmq.Bounds{}, nil)
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			m, err := p.router.Receive(context.Background())
			if err != nil {
				return
			}
			p.answer(m)
		}
	}()
	t.Cleanup(func() {
		p.close()
		<-served
	})
	return p
}

func (p *publisher) close() {
	_ = p.pub.Close()    // it may be closed already
	_ = p.router.Close() // it may be closed already
}

func (p *publisher) answer(m zmq.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	send := func(topic []byte, sequence uint64, payload []byte) {
		frames := [][]byte{nil, topic, binary.BigEndian.AppendUint64(nil, sequence), payload}
		if p.frames == 2 {
			frames = append(frames[:1], frames[2:]...)
		}
		_ = m.Answer(frames...) // the client may have left
	}
	for i := binary.BigEndian.Uint64(m.Frames[1]); i < p.next; i++ {
		if payload, ok := p.kept[i]; ok {
			send([]byte("kv"), i, payload)
		}
	}
	send(nil, 1<<64-1, nil)
}

// batch publishes the removal of a block whose name is the sequence number; if not sent, only replay has it.
func (p *publisher) batch(t *testing.T, sent bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	payload := pack(t, []any{float64(time.Now().Unix()), []any{[]any{"BlockRemoved", []any{p.next}}}, 0})
	p.kept[p.next] = payload
	if sent {
		p.pub.Send([]byte("kv"), binary.BigEndian.AppendUint64(nil, p.next), payload)
	}
	p.next++
}

// log is a handler that records the events since the last reset.
type log struct {
	mu    sync.Mutex
	got   []kvevents.Hash
	live  bool
	whole bool
}

func (l *log) Apply(b *kvevents.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range b.Events {
		l.got = append(l.got, e.Hashes...)
	}
}

func (l *log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = nil
}

func (l *log) SetLive(live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live = live
}

func (l *log) SetComplete(complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = complete
}

func (l *log) want(t *testing.T, live bool, want string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := fmt.Sprint(l.got); got != want || l.live != live {
			return fmt.Errorf("%s, live %t; want %s", got, l.live, want)
		}
		return nil
	})
}

func tcp(a net.Addr) string { return "tcp://" + a.String() }

func start(t *testing.T, p *publisher, replay bool) (*kvevents.Source, *log) {
	t.Helper()
	return startBy(t, p, replay, nil)
}

func startBy(t *testing.T, p *publisher, replay bool, dial zmq.DialFunc) (*kvevents.Source, *log) {
	t.Helper()
	l := new(log)
	s := runTo(t, p, replay, dial, kvevents.NewMemory(kvevents.QueueLimit), l)
	subscribed(t, p, s, replay)
	return s, l
}

// subscribed waits until the publisher has read the subscription,
// and has replayed the batches published until then.
func subscribed(t *testing.T, p *publisher, s *kvevents.Source, replay bool) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if st := s.Status(); p.pub.Subscribers() == 0 || replay && (st.Replays < 2 || st.State == kvevents.Replaying) {
			return fmt.Errorf("not subscribed: %+v", st)
		}
		return nil
	})
}

// runTo starts a Source that ends with the test.
func runTo(t *testing.T, p *publisher, replay bool, dial zmq.DialFunc, memory *kvevents.Memory, h kvevents.Handler) *kvevents.Source {
	t.Helper()
	at := kvevents.Publisher{Endpoint: tcp(p.pub.Addr()), Topic: "kv"}
	if replay {
		at.Replay = tcp(p.router.Addr())
	}
	s := kvevents.NewSource(at, dial, h, memory)
	t.Cleanup(background.Start(t.Context(), s.Run))
	return s
}

// TestSource checks that events from before the connection are replayed and that gaps are filled.
// Lost events or a restarted count cause a resynchronization. Replies have either of both forms.
func TestSource(t *testing.T) {
	t.Parallel()
	for _, frames := range []int{2, 3} {
		p := publish(t, frames, "tcp://"+testkit.FreePort(t), "tcp://"+testkit.FreePort(t))
		for range 3 {
			p.batch(t, false)
		}
		s, l := start(t, p, true)
		l.want(t, true, "[0 1 2]")
		p.batch(t, true)
		l.want(t, true, "[0 1 2 3]")
		p.batch(t, false)
		p.batch(t, false)
		p.batch(t, true) // 4 and 5 were missed
		l.want(t, true, "[0 1 2 3 4 5 6]")
		if st := replayed(t, s); st.Gaps != 1 || st.Replays != 3 || st.Resets != 1 || st.Sequence != 6 || st.Batches != 7 {
			t.Errorf("%+v", st)
		}
		p.batch(t, false)
		p.mu.Lock()
		for i := range uint64(8) {
			delete(p.kept, i)
		}
		p.mu.Unlock()
		p.batch(t, true) // 7 is lost permanently
		l.want(t, true, "[8]")
		p.mu.Lock()
		p.next, p.kept = 0, map[uint64][]byte{}
		p.mu.Unlock()
		p.batch(t, true) // the engine starts counting again
		l.want(t, true, "[0]")

		endpoint, replay := tcp(p.pub.Addr()), tcp(p.router.Addr())
		p.close()
		l.want(t, false, "[0]")
		again := publish(t, frames, endpoint, replay)
		again.batch(t, false)
		again.batch(t, false)
		l.want(t, true, "[0 1]")
	}
}

// counted counts the bytes that are read from a connection.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// TestReplay_Unavailable: a failed replay is requested only once per connection,
// however many batches arrive meanwhile, and again on the next connection.
func TestReplay_Unavailable(t *testing.T) {
	t.Parallel()
	p := publish(t, 3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	var broken atomic.Bool
	var read atomic.Int64
	refuse, dialed := make(chan struct{}), make(chan string, 1000)
	s, l := startBy(t, p, true, func(ctx context.Context, network, address string) (net.Conn, error) {
		what := "replay"
		if "tcp://"+address == tcp(p.pub.Addr()) {
			what = "publisher"
		}
		dialed <- what
		if broken.Load() && what == "replay" {
			<-refuse
			return nil, errors.New("refused")
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil || what == "replay" {
			return c, err
		}
		return counted{c, &read}, nil
	})
	p.batch(t, true)
	l.want(t, true, "[0]")
	broken.Store(true)
	p.batch(t, false)
	before := read.Load()
	const more, least = 100, 20 // batches, and minimum bytes of each
	for range more {
		p.batch(t, true)
	}
	testkit.Until(t, 20*time.Second, func() int64 { return read.Load() - before }, func(n int64) bool {
		return n >= more*least
	})
	close(refuse)
	var got []string
	for range 6 {
		got = append(got, <-dialed)
	}
	assert.Equal(t, []string{"publisher", "replay", "replay", "replay", "publisher", "replay"}, got,
		"connected to")
	broken.Store(false)
	testkit.Until(t, 20*time.Second, s.Status, func(st kvevents.Status) bool {
		return st.State == kvevents.Following && st.Sequence == more+1
	})
}

// TestSourceWithoutReplay: missed batches cannot be replayed, so after a gap only new events are known.
func TestSourceWithoutReplay(t *testing.T) {
	t.Parallel()
	p := publish(t, 3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	p.batch(t, false)
	s, l := start(t, p, false)
	l.want(t, true, "[]")
	assert.Equal(t, kvevents.Silent, s.Status().State)
	p.batch(t, true)
	p.batch(t, true)
	l.want(t, true, "[1 2]")
	p.batch(t, false)
	p.batch(t, true)
	l.want(t, true, "[4]")
	p.mu.Lock()
	p.next = 0
	p.mu.Unlock()
	p.batch(t, true) // the engine starts counting again
	l.want(t, true, "[0]")
	st := s.Status()
	assert.True(t, st.Gaps == 1 && st.Resets == 3 && st.State == kvevents.Following, "%+v", st)
}

// TestSource_Complete: the applied batches are complete only if
// they start with the engine's first one and have no gap.
func TestSource_Complete(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		replay  bool
		before  int  // batches before the connection
		dropped bool // the first of them is missing in the replay
		after   int
		got     string
		want    bool
	}{
		"replayed":                        {true, 2, false, 0, "[0 1]", true},
		"replayed and more":               {true, 2, false, 1, "[0 1 2]", true},
		"replay without the first":        {true, 2, true, 1, "[1 2]", false},
		"nothing published":               {true, 0, false, 0, "[]", true},
		"no replay, from the first":       {false, 0, false, 2, "[0 1]", true},
		"no replay, published before":     {false, 2, false, 1, "[2]", false},
		"no replay, nothing received yet": {false, 2, false, 0, "[]", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := publish(t, 3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
			for range tc.before {
				p.batch(t, false)
			}
			if tc.dropped {
				delete(p.kept, 0)
			}
			_, l := start(t, p, tc.replay)
			for range tc.after {
				p.batch(t, true)
			}
			l.want(t, true, tc.got)
			l.mu.Lock()
			defer l.mu.Unlock()
			assert.Equal(t, tc.want, l.whole, "complete")
		})
	}
}

// gated is a connection whose writes wait, in order, until it is opened. Handshakes are not delayed.
type gated struct {
	net.Conn

	mu   sync.Mutex
	held []byte
	shut bool // a subscription was written, and open has not been called
}

func (g *gated) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = g.shut || bytes.Contains(p, []byte("\x01kv")); g.shut {
		g.held = append(g.held, p...)
		return len(p), nil
	}
	return g.Conn.Write(p)
}

func (g *gated) open() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	_, err := g.Conn.Write(g.held)
	return err
}

// slowly dials the publisher and sends the gated connection to gate.
func slowly(p *publisher, gate chan<- *gated) zmq.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil || "tcp://"+address != tcp(p.pub.Addr()) {
			return c, err
		}
		g := &gated{Conn: c}
		gate <- g
		return g, nil
	}
}

// TestSource_SubscriptionAfterReplay: a batch that is published between the
// replay and the arrival of the subscription is applied without another batch.
// A source whose first batch was replayed is no longer Silent.
func TestSource_SubscriptionAfterReplay(t *testing.T) {
	t.Parallel()
	for _, tc := range [][2]string{{"[]", "[0]"}, {"[0]", "[0 1]"}} {
		p := publish(t, 3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
		if tc[0] != "[]" {
			p.batch(t, false)
		}
		gate, l := make(chan *gated, 1), new(log)
		s := runTo(t, p, true, slowly(p, gate), kvevents.NewMemory(kvevents.QueueLimit), l)
		l.want(t, true, tc[0])
		p.batch(t, true) // no subscriber yet
		require.NoError(t, (<-gate).open())
		l.want(t, true, tc[1])
		st := replayed(t, s)
		assert.True(t, st.Gaps == 0 && st.Resets == 1 && st.State == kvevents.Following, "%+v", st)
	}
}

// replayed returns the status after a replay, which has an end mark after its last batch.
func replayed(t *testing.T, s *kvevents.Source) (st kvevents.Status) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if st = s.Status(); st.State == kvevents.Replaying {
			return errors.New("still replaying")
		}
		return nil
	})
	return st
}

// TestTail_SubscriptionAfterReplay is the same for a Tail.
func TestTail_SubscriptionAfterReplay(t *testing.T) {
	t.Parallel()
	p := publish(t, 3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	p.batch(t, false)
	gate, got := make(chan *gated, 1), make(chan uint64, 10)
	tail := &kvevents.Tail{
		Publisher: kvevents.Publisher{Endpoint: tcp(p.pub.Addr()), Replay: tcp(p.router.Addr()), Topic: "kv"}, Dial: slowly(p, gate), Past: true,
		Ready: func() {}, Batch: func(n uint64, _ []byte) { got <- n },
		Missed:    func(_, last, current uint64) { t.Errorf("missed batches between %d and %d", last, current) },
		Lost:      func(error, time.Duration) {},
		Backwards: func(last, current uint64) { t.Errorf("backwards from %d to %d", last, current) },
	}
	defer background.Start(t.Context(), tail.Run)()
	assert.EqualValues(t, 0, <-got, "batch")
	p.batch(t, true) // no subscriber yet
	require.NoError(t, (<-gate).open())
	assert.EqualValues(t, 1, <-got, "batch")
}

// busy is a handler that applies one batch per receive from apply.
type busy struct {
	*log
	apply chan struct{}
}

func (b busy) Apply(is *kvevents.Batch) {
	<-b.apply
	b.log.Apply(is)
}

// TestSource_QueueMemory: waiting messages share a limit of bytes over all sources.
// Dropped ones are counted, and replayed even if no other batch follows.
func TestSource_QueueMemory(t *testing.T) {
	t.Parallel()
	const limit = 4 << 10
	memory := kvevents.NewMemory(limit)
	p := publish(t, 3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	h := busy{new(log), make(chan struct{})}
	s := runTo(t, p, true, nil, memory, h)
	subscribed(t, p, s, true)
	const batches = 200
	var want []int
	for i := range batches {
		want = append(want, i)
		p.batch(t, true)
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		used, most, dropped := memory.Stats()
		require.True(t, used <= limit && most == limit, "%d bytes of %d", used, most)
		if used < limit/2-200 || dropped == 0 {
			return fmt.Errorf("%d bytes wait, %d messages dropped", used, dropped)
		}
		return nil
	})
	close(h.apply)
	h.want(t, true, fmt.Sprint(want))
	assert.EqualValues(t, 1, s.Status().Resets)
	testkit.Eventually(t, 20*time.Second, func() error { // replayed messages leave the queue after the replay
		if used, _, _ := memory.Stats(); used != 0 {
			return fmt.Errorf("%d bytes wait", used)
		}
		return nil
	})
}
