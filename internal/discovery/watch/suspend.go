package watch

import (
	"context"
	"sync/atomic"
	"time"
)

// A process that was suspended, by SIGSTOP or with its machine, goes on as if
// nothing had been, with a membership from before. Its first pick must not go
// to an instance that was drained meanwhile.

// freshTimeout bounds how long picks wait for the list after a suspension, all
// together: while etcd is away the old membership is the best there is.
const freshTimeout = time.Second

// pulse is when this process was last seen to run.
type pulse struct{ last atomic.Pointer[time.Time] }

func (p *pulse) beat(now time.Time) { p.last.Store(&now) }

// gap is how long it has not run. The monotonic clock goes on under SIGSTOP,
// but stands still while a machine sleeps, which the wall clock shows; that one
// may be set forward too, which costs one list.
func (p *pulse) gap(now time.Time) time.Duration {
	last := p.last.Load()
	if last == nil {
		return 0
	}
	return max(now.Sub(*last), now.Round(0).Sub(last.Round(0)))
}

// gate holds up picks until a list that was asked for after the suspension has
// been published.
type gate struct {
	asked int64         // the demand that the list must answer
	until time.Time     // when waiting ends in any case
	open  chan struct{} // closed by the list
}

// beat keeps the pulse.
func (w *Watcher) beat(ctx context.Context) {
	tick := time.NewTicker(max(w.o.SuspendedAfter/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.lookBack(time.Now())
		}
	}
}

// lookBack closes the gate if this process did not run for too long.
func (w *Watcher) lookBack(now time.Time) {
	if w.pulse.gap(now) >= w.o.SuspendedAfter {
		g := &gate{asked: w.asked.Add(1), until: now.Add(freshTimeout), open: make(chan struct{})}
		if w.gate.CompareAndSwap(nil, g) {
			w.note(func(s *Status) { s.Suspensions++ })
			w.log.Warn("this process was suspended: reading the membership again before it picks instances")
			w.Relist(relistResumed)
		}
	}
	w.pulse.beat(now)
}

// openGate lets picks go on after the publication of a list that answers so
// many demands.
func (w *Watcher) openGate(asked int64) {
	if g := w.gate.Load(); g != nil && asked >= g.asked && w.gate.CompareAndSwap(g, nil) {
		close(g.open)
	}
}

// Fresh is called before instances are picked. It returns at once, unless this
// process was suspended: then it waits for a list, for a second at most, or
// until ctx ends. It costs two atomic loads. now is what the clock showed a moment
// ago.
func (w *Watcher) Fresh(ctx context.Context, now time.Time) {
	if w.gate.Load() == nil && w.pulse.gap(now) < w.o.SuspendedAfter {
		return
	}
	w.lookBack(now)
	g := w.gate.Load()
	if g == nil || !now.Before(g.until) {
		return
	}
	timer := time.NewTimer(g.until.Sub(now))
	defer timer.Stop()
	select {
	case <-g.open:
	case <-timer.C:
	case <-ctx.Done():
	}
}
