package kvevents

import (
	"sync"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
)

// QueueLimit is the default limit of a Memory in bytes, for the messages of all sources that wait to be
// applied. It is twice the largest message.
const QueueLimit = 128 << 20

// messageBytes is the memory of a waiting message in addition to its payload.
const messageBytes = 64

// Memory bounds the messages that wait in all Sources that share it. NewMemory creates it. It is safe for
// concurrent use.
type Memory struct {
	limit   int64
	used    atomic.Int64
	dropped atomic.Uint64
}

// NewMemory returns a Memory with a limit in bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// Stats returns the bytes in use, the limit, and the number of messages dropped so far.
func (m *Memory) Stats() (used, limit int64, dropped uint64) {
	return m.used.Load(), m.limit, m.dropped.Load()
}

// reserve reserves n bytes for a source that already holds own bytes, and reports whether they are available.
// A source may hold at most as much as is free, so that a slow one leaves memory for the others.
func (m *Memory) reserve(own, n int64) bool {
	for {
		used := m.used.Load()
		if own+n > m.limit-used {
			m.dropped.Add(1)
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// queue holds the messages of one connection, from its reader to its Source.
type queue struct {
	memory *Memory
	ended  chan struct{} // closed when the reader has ended

	mu       sync.Mutex // guards all below
	changed  sync.Cond  // of mu
	messages []message
	bytes    int64
	dropped  bool  // messages were dropped after the last one
	err      error // the error that ended the reader
}

func newQueue(m *Memory) *queue {
	q := &queue{memory: m, ended: make(chan struct{})}
	q.changed.L = &q.mu
	return q
}

// fill reads from a connection until it ends.
func (q *queue) fill(conn *zmq.Conn) {
	defer close(q.ended)
	for {
		frames, err := conn.Receive()
		if err == nil && len(frames) == 0 {
			q.put(message{catchUp: true}) // a PONG: the publisher has read the subscription
			continue
		}
		m, ok := read(frames)
		if err == nil && !ok {
			err = errFrames
		}
		if err != nil {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.err = err
			q.changed.Signal()
			return
		}
		q.put(m)
	}
}

// put appends a message, or drops it if the memory is used up.
func (q *queue) put(m message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := size(m)
	if q.dropped && m.catchUp {
		return // next returns a catchUp anyway
	}
	if q.dropped = !m.catchUp && !q.memory.reserve(q.bytes, n); q.dropped {
		q.changed.Signal() // next may be waiting
		return
	}
	q.messages = append(q.messages, m)
	q.bytes += n
	q.changed.Signal()
}

// size returns the memory of a waiting message in bytes; 0 for one without a batch, of which each connection
// has one.
func size(m message) int64 {
	if m.catchUp {
		return 0
	}
	return messageBytes + int64(cap(m.payload))
}

// next blocks until there is a message, and returns it. If messages were dropped after the last one, it
// returns one without a batch. After the last message, it returns the error that ended the reader.
func (q *queue) next() (message, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.messages) == 0 && !q.dropped && q.err == nil {
		q.changed.Wait()
	}
	switch {
	case len(q.messages) > 0:
		m := q.messages[0]
		q.messages[0] = message{} // for the garbage collector
		q.messages = q.messages[1:]
		q.release(size(m))
		return m, nil
	case q.dropped:
		q.dropped = false
		return message{catchUp: true}, nil
	default:
		return message{}, q.err
	}
}

// release returns memory. The caller holds mu.
func (q *queue) release(n int64) {
	q.bytes -= n
	q.memory.used.Add(-n)
}

// wait blocks until the reader, whose connection must be closed, has ended. It drops the remaining messages.
func (q *queue) wait() {
	<-q.ended
	q.mu.Lock()
	defer q.mu.Unlock()
	q.messages = nil
	q.release(q.bytes)
}
