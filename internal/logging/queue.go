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

// maxQueued is how much may wait for an output that takes nothing, in bytes.
const maxQueued = 4 << 20

// Queue is an output that nobody waits for. The reader of a program's log may stall, as
// a terminal does after Ctrl-S or a container's log driver that is full; who logs may
// hold locks that every request needs. What does not fit any more is dropped and
// counted. It is safe for concurrent use; make it with NewQueue.
type Queue struct {
	w    io.Writer
	lost func(lines int)

	mu      sync.Mutex // guards what follows; not held for a write to w
	buf     []byte
	dropped int           // lines since the last write that went through
	idle    chan struct{} // closed when all is written; nil while nothing is being written
}

// NewQueue makes a queue in front of w. lost, if not nil, hears how many lines were
// dropped, once there is room again.
func NewQueue(w io.Writer, lost func(lines int)) *Queue { return &Queue{w: w, lost: lost} }

// Write takes whole lines and never waits. It gives no error: who logs could do nothing
// about it.
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

// write writes until nothing is left.
func (q *Queue) write(idle chan struct{}) {
	defer close(idle)
	var out []byte
	for {
		q.mu.Lock()
		if len(q.buf) == 0 {
			q.idle = nil
			q.mu.Unlock()
			return
		}
		out, q.buf = q.buf, out[:0]
		q.mu.Unlock()
		_, _ = q.w.Write(out) // an output that is gone takes nothing more
		if cap(out) > maxQueued/8 {
			out = nil // a pile-up must not stay in memory
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

// Flush waits until all is written, for so long at most, and tells whether it is.
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
	log.WithField("lines", lines).Warn("log lines were lost: nobody took them")
}

// OutliveReader lets a program live on when the reader of its output ends: Go ends a
// program that writes to a broken pipe on its standard output or error. The signal is
// caught and not ignored, since a process that is started would inherit that.
func OutliveReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
