package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// loadWatch records when the engine was last busy, by the monotonic clock of this machine.
type loadWatch struct {
	finished float64
	lastBusy time.Time // zero: never seen busy
}

// see records one reading. The counter of finished requests reveals requests that ran between two
// readings. Requests in the first reading's counter may have finished just before.
func (l *loadWatch) see(s vllm.Stats, now time.Time) {
	if s.Running > 0 || s.Waiting > 0 || s.Finished != l.finished {
		l.lastBusy = now
	}
	l.finished = s.Finished
}

const (
	// idleAfter is the number of idle readings in a row that end a drain. The second one shows
	// a request that a proxy sent just before it noticed "draining".
	idleAfter = 2
	drainPoll = 500 * time.Millisecond
)

// idleWait waits until the engine of an agent is idle.
type idleWait struct {
	*Agent
	earliest time.Time // earliest end of the wait for an idle engine

	idle, refused int    // consecutive readings
	logged        string // last reason logged
}

// wait reads the engine's load until it is idle, or until ctx ends: the limit has passed, the
// wait is skipped, or the engine's process has exited. It returns the reason for the log.
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
				return "wait skipped"
			case closed(w.o.Exited):
				return "the engine's process has ended"
			}
			return "the limit has passed"
		case <-poll.C:
		}
	}
}

// read reads the load once. It returns the reason to end the wait, or "" to continue.
func (w *idleWait) read(ctx context.Context) string {
	lctx, cancel := context.WithTimeout(ctx, w.o.ProbeTimeout)
	stats, err := w.engine.Load(lctx)
	cancel()
	if ctx.Err() != nil {
		return "" // an interrupted reading does not count
	}
	now := time.Now()
	busy := ""
	switch {
	case errors.Is(err, vllm.ErrRefused):
		if w.refused++; w.refused >= downAfter {
			return "the engine refuses connections"
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
	if busy != w.logged {
		w.o.Log.Info("still draining: " + busy)
		w.logged = busy
	}
	return ""
}

// busy returns why the engine is not idle, "" if it is.
func (w *idleWait) busy(s vllm.Stats, now time.Time) string {
	switch {
	case !s.Complete:
		return "the engine's /metrics have no number of running requests"
	case !s.Idle():
		return fmt.Sprintf("%g running, %g waiting", s.Running, s.Waiting)
	case w.o.Key.Role != instance.Decode && w.o.KVLease > 0 &&
		!w.load.lastBusy.IsZero() && now.Sub(w.load.lastBusy) < w.o.KVLease:
		return "finished prefills may still be pulled by decode"
	}
	return ""
}
