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
	// maxQueued bounds the bytes that wait for an output that takes nothing.
	maxQueued = 4 << 20
	// gather is how long lines are gathered after a write, for one write of all of them. A
	// busy proxy has an access line every few microseconds, and a write each would take
	// longer than the encoding of the line.
	gather = 10 * time.Millisecond
)

// Queue is an output that never blocks its writers. The reader of a program's log may stall,
// as a terminal does after Ctrl-S or a container's log driver that is full, while a writer
// holds locks that every request needs. Lines that do not fit any more are dropped and
// counted. NewQueue creates a Queue. It is safe for concurrent use.
type Queue struct {
	w    io.Writer
	lost func(lines int)

	mu      sync.Mutex // guards what follows; not held for a write to w
	buf     []byte
	dropped int           // lines since the last write that went through
	idle    chan struct{} // closed when all is written; nil while nothing is being written
	hurry   chan struct{} // has a value when someone waits for idle
}

// NewQueue returns a queue in front of w. lost, if not nil, is called with the number of
// lines that were dropped, once w takes lines again.
func NewQueue(w io.Writer, lost func(lines int)) *Queue {
	return &Queue{w: w, lost: lost, hurry: make(chan struct{}, 1)}
}

// Write takes whole lines and never blocks. It returns no error, because a writer of logs
// could do nothing about it.
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

// write writes until nothing has come for a while.
func (q *Queue) write(idle chan struct{}) {
	defer close(idle)
	var out []byte
	for first := true; ; first = false {
		if !first {
			q.wait()
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

// wait waits for further lines.
func (q *Queue) wait() {
	timer := time.NewTimer(gather)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.hurry:
	}
}

// Flush blocks until all is written, for at most limit, and reports whether it is.
func (q *Queue) Flush(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
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
		case <-timer.C:
			return false
		}
	}
}

// FlushLimit is how long a program that ends waits for the reader of its log.
const FlushLimit = time.Second

// Lost logs that lines were dropped.
func Lost(log logrus.FieldLogger, lines int) {
	log.WithField("lines", lines).Warn("log lines dropped: output too slow")
}

// OutliveReader lets a program live on when the reader of its output ends: Go ends a
// program that writes to a broken pipe on its standard output or error. The signal is
// caught and not ignored, since a process that is started would inherit that.
func OutliveReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
