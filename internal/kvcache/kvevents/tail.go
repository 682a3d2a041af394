package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
)

// Tail reads the events of a publisher as they arrive, and replays missed ones if the publisher
// still has them. Its functions are not called concurrently.
type Tail struct {
	Publisher Publisher
	Dial      zmq.DialFunc
	Past      bool                                  // begin with the batches that the publisher still has
	Ready     func()                                // called when it listens, after each connection
	Batch     func(sequence uint64, payload []byte) // may keep the payload
	Missed    func(missed, last, current uint64)    // called before the missed batches that are still available
	Lost      func(err error, again time.Duration)  // it reconnects after this time; 0: the connection continues
	Backwards func(last, current uint64)            // the engine has restarted its count

	last uint64 // counts from 1
}

// tailPause is the pause between two connections.
const tailPause = time.Second

// Run reads events until the context ends.
func (t *Tail) Run(ctx context.Context) {
	for {
		err := t.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		t.Lost(err, tailPause)
		sleep.For(ctx, tailPause)
	}
}

func (t *Tail) listen(ctx context.Context) error {
	conn, err := subscribe(ctx, t.Publisher, t.Dial)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // unblocks conn
	defer func() { _ = conn.Close() }()                         // may be closed already
	t.Ready()
	replayed := uint64(0) // last sequence that was replayed over this connection
	begins := t.Past && t.last == 0
	if begins {
		replayed = t.past(ctx, 1)
	}
	for {
		frames, err := conn.Receive()
		if err != nil {
			return err
		}
		if len(frames) == 0 { // the publisher has read the subscription; see Source.follow
			if begins {
				replayed = max(replayed, t.past(ctx, t.last+1))
			}
			continue
		}
		m, ok := read(frames)
		switch {
		case !ok:
			return errFrames
		case m.sequence <= replayed:
			continue
		case m.sequence <= t.last: // nothing is published twice
			t.Backwards(t.last-1, m.sequence-1)
		case t.last > 0 && m.sequence > t.last+1:
			t.Missed(m.sequence-t.last-1, t.last-1, m.sequence-1)
			if replayed = t.past(ctx, t.last+1); m.sequence <= replayed {
				continue
			}
		}
		replayed = 0
		t.deliver(m)
	}
}

func (t *Tail) deliver(m message) {
	t.last = m.sequence
	t.Batch(m.sequence-1, m.payload)
}

// past delivers the batches that the publisher still has from a sequence number on, and returns the last one.
// Errors are passed to Lost and do not end the subscription.
func (t *Tail) past(ctx context.Context, from uint64) (to uint64) {
	if t.Publisher.Replay == "" {
		return 0
	}
	err := past(ctx, t.Publisher, t.Dial, from, func(m message) {
		if m.sequence > t.last {
			t.deliver(m)
		}
	})
	if err != nil && ctx.Err() == nil {
		t.Lost(err, 0)
	}
	return t.last
}

// past requests the batches that a publisher still has from a sequence number on.
func past(ctx context.Context, p Publisher, dial zmq.DialFunc, from uint64, each func(message)) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	conn, err := zmq.Dial(ctx, zmq.Dealer, p.Replay, bounds(), dial)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // unblocks conn
	defer func() { _ = conn.Close() }()                         // may be closed already
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, from-1)); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	for {
		frames, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		m, ok := answer(frames)
		switch {
		case !ok:
			return fmt.Errorf("replay: %w", errFrames)
		case len(m.payload) == 0: // the end
			return nil
		}
		each(m)
	}
}
