package accesslog

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward"
)

const (
	// flushEvery is how long a line may wait to be written.
	flushEvery = 100 * time.Millisecond
	// flushAt is how many bytes are written without waiting.
	flushAt = 64 << 10
	// maxBuffered is what may pile up while the output does not take any; more
	// lines are dropped and counted.
	maxBuffered = 4 << 20
)

// Options configure a Log.
type Options struct {
	// Out gets whole lines, many at a time.
	Out io.Writer
	// JSON writes objects instead of key=value.
	JSON bool
	// Log is told of lines that were lost.
	Log logrus.FieldLogger
}

// Log collects access lines and writes them out in Run. It is safe for
// concurrent use.
type Log struct {
	opts Options

	mu    sync.Mutex // guards what follows; held for the encoding of one line
	buf   []byte
	clock clock
	lost  int // lines dropped since the last write

	some chan struct{} // a first line is in the buffer
	many chan struct{} // the buffer is worth a write
}

// New builds a Log. Nothing is written before Run.
func New(o Options) *Log {
	l := &Log{opts: o, some: make(chan struct{}, 1), many: make(chan struct{}, 1)}
	if o.JSON {
		l.clock = clock{before: jsonHead, after: jsonTail}
	} else {
		l.clock = clock{before: textHead, after: textTail}
	}
	return l
}

// Write adds the line of one finished request. It never waits for the output.
func (l *Log) Write(e *forward.Entry) {
	l.mu.Lock()
	if len(l.buf) >= maxBuffered {
		l.lost++
		l.mu.Unlock()
		return
	}
	first := len(l.buf) == 0
	if l.opts.JSON {
		l.buf = appendJSON(l.buf, &l.clock, e)
	} else {
		l.buf = appendText(l.buf, &l.clock, e)
	}
	full := len(l.buf) >= flushAt
	l.mu.Unlock()
	if first {
		signal(l.some)
	}
	if full {
		signal(l.many)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes the lines until ctx ends, and then what is left.
func (l *Log) Run(ctx context.Context) {
	timer := time.NewTimer(flushEvery)
	timer.Stop()
	var spare []byte
	for {
		select {
		case <-ctx.Done():
			l.flush(spare)
			return
		case <-l.some:
			timer.Reset(flushEvery)
			continue
		case <-l.many:
		case <-timer.C:
		}
		spare = l.flush(spare)
	}
}

// flush writes out the buffer and puts the spare one in its place; it gives
// the written one back.
func (l *Log) flush(spare []byte) []byte {
	l.mu.Lock()
	out, lost := l.buf, l.lost
	l.buf, l.lost = spare[:0], 0
	l.mu.Unlock()
	if lost > 0 {
		l.opts.Log.WithField("lines", lost).Warn("access lines were lost: the output takes them too slowly")
	}
	if len(out) > 0 {
		if _, err := l.opts.Out.Write(out); err != nil {
			l.opts.Log.WithError(err).Warn("access lines could not be written")
		}
	}
	if cap(out) > 4*flushAt {
		return nil // a pile-up must not stay in memory
	}
	return out
}
