package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// loadWatch remembers when the engine last had something to do. Times are this
// machine's monotonic clock.
type loadWatch struct {
	known    bool
	finished float64
	lastBusy time.Time // zero: never seen busy
}

// see takes one reading. A request that started and ended between two readings
// shows in the counter of finished ones; those finished before the first
// reading may have ended just now.
func (l *loadWatch) see(s vllm.Stats, now time.Time) {
	if s.Running > 0 || s.Waiting > 0 || s.Finished != l.finished {
		l.lastBusy = now
	}
	l.known, l.finished = s.Complete, s.Finished
}

const (
	// idleAfter is how many idle readings in a row end a drain: a request that a
	// proxy sent just before it saw "draining" shows up in the second.
	idleAfter = 2
	drainPoll = 500 * time.Millisecond
)

// idleWait is the wait of a drain for an engine to be idle.
type idleWait struct {
	engine Engine
	o      *Options
	load   *loadWatch
	hurry  <-chan struct{} // closed when the wait is to be skipped

	earliest time.Time // an idle engine does not end the wait before

	idle, refused int    // readings of one kind in a row
	shown         string // what was last said to be left
}

// limited returns a context that ends when the limit of a drain has passed, the agent is
// told not to wait, or the engine's process has exited.
func (w *idleWait) limited(ctx context.Context, limit time.Duration) (limited context.Context, stop func()) {
	limited, cancel := context.WithTimeout(ctx, limit)
	return limited, endsWith(limited, cancel, w.hurry, w.o.Exited) // a hurry also ends a reading that hangs
}

// wait reads the engine's load until it is idle or ctx, which is limited, ends. It
// returns in words what ended the wait.
func (w *idleWait) wait(ctx context.Context) string {
	poll := time.NewTicker(min(drainPoll, w.o.DrainTimeout))
	defer poll.Stop()
	for {
		if why := w.read(ctx); why != "" {
			return why
		}
		select {
		case <-ctx.Done():
			switch {
			case closed(w.hurry):
				return "told not to wait"
			case closed(w.o.Exited):
				return "the engine's process has ended"
			}
			return "the limit has passed"
		case <-poll.C:
		}
	}
}

// read takes one reading, and returns why it is the last, "" if it is not.
func (w *idleWait) read(ctx context.Context) string {
	lctx, cancel := context.WithTimeout(ctx, w.o.ProbeTimeout)
	stats, err := w.engine.Load(lctx)
	cancel()
	if ctx.Err() != nil {
		return "" // an interrupted reading says nothing about the engine
	}
	now := time.Now()
	busy := ""
	switch {
	case errors.Is(err, vllm.ErrRefused):
		if w.refused++; w.refused >= downAfter {
			return "the engine is gone"
		}
		busy = "the engine refuses connections"
	case err != nil:
		w.refused, w.idle = 0, 0
		busy = "the engine does not show its load: " + err.Error()
	default:
		w.refused = 0
		w.load.see(stats, now)
		busy = w.busy(stats, now)
	}
	if busy == "" {
		if w.idle++; w.idle >= idleAfter && !now.Before(w.earliest) {
			return "the engine is idle"
		}
		return ""
	}
	w.idle = 0
	if busy != w.shown {
		w.o.Log.Info("still draining: " + busy)
		w.shown = busy
	}
	return ""
}

// busy says what the engine still has to do, "" for nothing.
func (w *idleWait) busy(s vllm.Stats, now time.Time) string {
	switch {
	case !s.Complete:
		return "the engine's /metrics do not tell what runs"
	case !s.Idle():
		return fmt.Sprintf("%g running, %g waiting", s.Running, s.Waiting)
	case w.o.Key.Role != instance.Decode && w.o.KVLease > 0 &&
		!w.load.lastBusy.IsZero() && now.Sub(w.load.lastBusy) < w.o.KVLease:
		return "finished prefills may still be pulled by decode"
	}
	return ""
}
