package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
)

// Publisher has the endpoints at which one rank of an engine publishes.
type Publisher struct {
	Endpoint string // tcp://host:port
	Replay   string // endpoint for past batches; empty if the engine keeps none
	Topic    string
}

// Handler receives the events of a Source. Its methods are not called concurrently.
type Handler interface {
	Apply(b *Batch)    // the handler must not retain the batch
	Reset()            // discards all that was applied
	SetLive(live bool) // whether the applied state is up to date
	// SetComplete sets whether every batch since the start of the engine was applied, after a Reset or a gap.
	SetComplete(complete bool)
}

// State is the state of a Source's subscription.
type State string

// The states.
const (
	Lost      State = "lost"      // no connection
	Replaying State = "replaying" // missed batches are requested
	Following State = "following"
	Silent    State = "no events" // following, but nothing was ever published
)

// Status is the status of a Source.
type Status struct {
	State    State
	Error    string // why it is lost, or the last problem
	Sequence uint64 // of the last batch
	Batches  uint64
	Bad      uint64 // batches or events that could not be read
	Gaps     uint64 // batches were missed
	Replays  uint64 // requests for past batches
	Resets   uint64 // number of times that all state was discarded
	Lag      time.Duration
}

// bounds returns the limits for messages of a publisher. A batch is one step of an engine; a prompt of a
// million tokens takes about 6 MB.
func bounds() zmq.Bounds { return zmq.Bounds{Bytes: 64 << 20, Frames: 8} }

const (
	// replayTimeout bounds a replay. Engines respond between batches.
	replayTimeout = 30 * time.Second
	pauseFirst    = 100 * time.Millisecond
	pauseMost     = 5 * time.Second
)

// Source follows one publisher. NewSource creates it; Run may be called once.
type Source struct {
	publisher Publisher
	dial      zmq.DialFunc
	handler   Handler
	memory    *Memory

	batch Batch
	// last is the sequence of the last batch applied, live that of the last one published over this
	// connection. Both count from 1; 0 means none.
	last, live uint64

	mu     sync.Mutex
	status Status
}

// NewSource returns a Source that does not follow yet. A nil dial connects to any address. memory limits the
// messages that wait while others are applied. A message above the limit is dropped; a replay fills the gap
// when the next message is applied.
func NewSource(p Publisher, dial zmq.DialFunc, h Handler, memory *Memory) *Source {
	return &Source{publisher: p, dial: dial, handler: h, memory: memory, status: Status{State: Lost}}
}

// Status returns the status of the Source.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Source) note(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// Run follows the publisher until the context ends. Whenever the connection ends, it connects again, after
// increasing pauses.
func (s *Source) Run(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = pauseFirst, pauseMost
	for ctx.Err() == nil {
		err := s.follow(ctx, pause.Reset)
		s.handler.SetLive(false)
		s.note(func(st *Status) { st.State, st.Error = Lost, err.Error() })
		sleep.For(ctx, pause.NextBackOff())
	}
}

// message is one batch that is not decoded yet.
type message struct {
	sequence uint64 // from 1
	payload  []byte
	catchUp  bool // no batch: request the batches published since the last one
}

var errFrames = errors.New("not a message of KV events")

// subscribe connects to a publisher.
func subscribe(ctx context.Context, p Publisher, dial zmq.DialFunc) (*zmq.Conn, error) {
	conn, err := zmq.Dial(ctx, zmq.Sub, p.Endpoint, bounds(), dial)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if err := errors.Join(conn.Subscribe(p.Topic), conn.Ping()); err != nil {
		_ = conn.Close() // the connection is broken
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return conn, nil
}

// follow serves one connection. It calls follows after the first replay, so that the pauses grow while a
// publisher's replay fails. State from earlier connections is dropped: a restarted engine counts from 0
// again, and its count may already exceed the last one.
//
// The subscription and the replay use two connections, so a batch can be published after the replay and
// before the subscription has arrived. The publisher answers a PING only once it has read the subscription;
// then the batches published meanwhile are replayed.
func (s *Source) follow(ctx context.Context, follows func()) error {
	conn, err := subscribe(ctx, s.publisher, s.dial)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // unblocks conn
	q := newQueue(s.memory)
	go q.fill(conn) // it also reads during replays, so that the publisher drops nothing
	defer func() {
		_ = conn.Close() // this ends the reader
		q.wait()
	}()
	s.live = 0
	if err := s.rebuild(ctx); err != nil {
		return err
	}
	follows()
	for {
		m, err := q.next()
		if err != nil {
			return fmt.Errorf("the publisher's connection ended: %w", err)
		}
		if err := s.take(ctx, m); err != nil {
			return err
		}
	}
}

// read splits a message into topic, sequence and payload.
func read(frames [][]byte) (message, bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return message{}, false
	}
	return message{sequence: binary.BigEndian.Uint64(frames[1]) + 1, payload: frames[2]}, true
}

// take applies a published message, after any batches that were missed before it.
func (s *Source) take(ctx context.Context, m message) error {
	if m.catchUp {
		return s.catchUp(ctx)
	}
	backwards := m.sequence <= s.live
	s.live = m.sequence
	switch {
	case backwards: // the engine was restarted behind the same connection
		if err := s.rebuild(ctx); err != nil {
			return err
		}
		if m.sequence <= s.last {
			return nil
		}
	case m.sequence <= s.last: // already applied by a replay
		return nil
	case m.sequence > s.last+1 && (s.last > 0 || s.publisher.Replay != ""):
		s.note(func(st *Status) { st.Gaps++ })
		if err := s.fill(ctx, m); err != nil {
			return err
		}
		if m.sequence <= s.last {
			return nil
		}
	}
	s.apply(m)
	return nil
}

// catchUp applies the batches published since the last applied batch.
func (s *Source) catchUp(ctx context.Context) error {
	if s.publisher.Replay == "" {
		return nil
	}
	if whole, err := s.replay(ctx, s.last+1); whole || err != nil {
		return err
	}
	return s.rebuild(ctx)
}

// fill replays the batches before a message. If some are still missing, the state is rebuilt.
func (s *Source) fill(ctx context.Context, m message) error {
	if s.publisher.Replay != "" && s.last > 0 {
		whole, err := s.replay(ctx, s.last+1)
		if err != nil {
			return err
		}
		if whole && m.sequence <= s.last+1 {
			return nil
		}
	}
	return s.rebuild(ctx)
}

// rebuild drops all state and requests a replay of all batches that the publisher still has.
func (s *Source) rebuild(ctx context.Context) error {
	s.handler.SetLive(false)
	s.handler.Reset()
	s.handler.SetComplete(s.publisher.Replay != "") // until a batch shows whether there were earlier ones
	s.last = 0
	s.note(func(st *Status) { st.Resets++ })
	if s.publisher.Replay != "" {
		if _, err := s.replay(ctx, 1); err != nil {
			return err
		}
	}
	s.handler.SetLive(true)
	s.note(func(st *Status) {
		if st.State, st.Error = Following, ""; st.Batches == 0 {
			st.State = Silent
		}
	})
	return nil
}

// replay requests the batches from a sequence number on, and applies them. whole reports whether no batch was
// missing.
func (s *Source) replay(ctx context.Context, from uint64) (whole bool, err error) {
	was := s.Status().State
	s.note(func(st *Status) { st.State = Replaying; st.Replays++ })
	defer s.note(func(st *Status) {
		if st.State = was; was == Silent && st.Batches > 0 {
			st.State = Following
		}
	})
	whole, next := true, from
	err = past(ctx, s.publisher, s.dial, from, func(m message) {
		if m.sequence < next {
			return
		}
		whole = whole && m.sequence == next
		next = m.sequence + 1
		s.apply(m)
	})
	return whole && err == nil, err
}

// answer splits an answer of a replay: an empty frame, the topic (since vLLM 0.26), sequence, payload.
func answer(frames [][]byte) (message, bool) {
	n := len(frames)
	if (n != 3 && n != 4) || len(frames[0]) != 0 || len(frames[n-2]) != 8 {
		return message{}, false
	}
	return message{sequence: binary.BigEndian.Uint64(frames[n-2]) + 1, payload: frames[n-1]}, true
}

// apply passes a batch to the handler. A batch that cannot be decoded invalidates all earlier
// state, because its content is unknown.
func (s *Source) apply(m message) {
	if first := m.sequence == 1; first || m.sequence != s.last+1 {
		s.handler.SetComplete(first)
	}
	s.last = m.sequence
	err := Decode(m.payload, &s.batch)
	if err != nil {
		s.handler.Reset()
		s.handler.SetComplete(false)
	} else {
		s.handler.Apply(&s.batch)
	}
	s.note(func(st *Status) {
		st.Sequence = m.sequence - 1
		st.Batches++
		if st.State == Silent {
			st.State = Following
		}
		if err != nil {
			st.Bad++
			st.Resets++
			st.Error = err.Error()
			return
		}
		st.Bad += uint64(s.batch.Bad) //nolint:gosec // never negative
		st.Lag = max(0, time.Since(time.UnixMicro(int64(s.batch.Time*1e6))))
	})
}
