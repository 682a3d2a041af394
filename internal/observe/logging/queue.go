package logging

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// maxQueued bounds the bytes that wait for a blocked output.
	maxQueued = 4 << 20
	// gather is the time for which lines are collected after a write, to write them together.
	// A busy proxy logs a request every few microseconds, and a separate write would take
	// longer than encoding the line.
	gather = 10 * time.Millisecond
)

// Queue is an output that never blocks its writers. The reader of a program's log may stall,
// like a terminal after Ctrl-S or a full log driver of a container, while a writer holds locks
// that every request needs. Lines beyond the limit are dropped and counted. NewQueue creates a
// Queue. It is safe for concurrent use.
type Queue struct {
	w    io.Writer
	lost func(lines int)

	mu      sync.Mutex // guards the fields below; not held during a write to w
	buf     []byte
	dropped int           // lines dropped since the last successful write
	idle    chan struct{} // closed when all lines are written; nil while no write is running
	hurry   chan struct{} // has a value while Flush waits for idle
}

// NewQueue returns a Queue that writes to w. lost, if not nil, is called with the number of
// dropped lines, once w accepts lines again.
func NewQueue(w io.Writer, lost func(lines int)) *Queue {
	return &Queue{w: w, lost: lost, hurry: make(chan struct{}, 1)}
}

// Write queues complete lines and never blocks. It returns no error, because a logger could not
// handle it.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.buf)+len(p) > maxQueued {
		q.dropped += bytes.Count(p, []byte("\n"))
		return len(p), nil
	}
	q.buf = append(q.buf, p...)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.write(q.idle)
	}
	return len(p), nil
}

// write writes queued lines until none has arrived for some time.
func (q *Queue) write(idle chan struct{}) {
	defer close(idle)
	var out []byte
	for first := true; ; first = false {
		if !first {
			select { // further lines
			case <-time.After(gather):
			case <-q.hurry:
			}
		}
		q.mu.Lock()
		if len(q.buf) == 0 {
			q.idle = nil
			q.mu.Unlock()
			return
		}
		out, q.buf = q.buf, out[:0]
		q.mu.Unlock()
		_, _ = q.w.Write(out) // errors are ignored: the output may be closed
		if cap(out) > maxQueued/8 {
			out = nil // do not retain a large buffer
		}
		q.mu.Lock()
		dropped := q.dropped
		q.dropped = 0
		q.mu.Unlock()
		if dropped > 0 && q.lost != nil {
			q.lost(dropped)
		}
	}
}

// Flush blocks until all lines are written, for at most limit, and reports whether they are.
func (q *Queue) Flush(limit time.Duration) bool {
	late := time.After(limit)
	for {
		q.mu.Lock()
		idle := q.idle
		q.mu.Unlock()
		if idle == nil {
			return true
		}
		select {
		case q.hurry <- struct{}{}:
		default:
		}
		select {
		case <-idle:
		case <-late:
			return false
		}
	}
}

// FlushLimit bounds the time for which an exiting program waits for the reader of its log.
const FlushLimit = time.Second

// Lost logs that lines were dropped.
func Lost(log logrus.FieldLogger, lines int) {
	log.WithField("lines", lines).Warn("log lines dropped: output too slow")
}

// OutliveReader keeps a program running when the reader of its output exits: by default Go
// terminates a program that writes to a broken pipe on standard output or error. SIGPIPE is
// caught instead of ignored, since child processes would inherit an ignored signal.
func OutliveReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
