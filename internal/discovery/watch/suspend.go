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
// but stops while a machine sleeps, which the wall clock shows; that one
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

// suspension finds out that this process did not run, and holds up picks then.
type suspension struct {
	after time.Duration // how long it must not have run
	found func()        // asks for a list

	pulse pulse
	asked atomic.Int64         // times that a list was demanded which begins later
	gate  atomic.Pointer[gate] // set while a suspension has not been made up for
}

// beat keeps the pulse.
func (s *suspension) beat(ctx context.Context) {
	tick := time.NewTicker(max(s.after/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.noticeGap(time.Now())
		}
	}
}

// lookBack closes the gate if this process did not run for too long.
func (s *suspension) noticeGap(now time.Time) {
	if s.pulse.gap(now) >= s.after {
		g := &gate{asked: s.asked.Add(1), until: now.Add(freshTimeout), open: make(chan struct{})}
		if s.gate.CompareAndSwap(nil, g) {
			s.found()
		}
	}
	s.pulse.beat(now)
}

// openGate lets picks go on after the publication of a list that answers so
// many demands.
func (s *suspension) openGate(asked int64) {
	if g := s.gate.Load(); g != nil && asked >= g.asked && s.gate.CompareAndSwap(g, nil) {
		close(g.open)
	}
}

// wait is Watcher.Fresh.
func (s *suspension) wait(ctx context.Context, now time.Time) {
	if s.gate.Load() == nil && s.pulse.gap(now) < s.after {
		return
	}
	s.noticeGap(now)
	g := s.gate.Load()
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

// Fresh is called before instances are picked. It returns at once, unless this
// process was suspended: then it waits for a list, for a second at most, or
// until ctx ends. It costs two atomic loads. now is what the clock showed a moment
// ago.
func (w *Watcher) Fresh(ctx context.Context, now time.Time) { w.suspension.wait(ctx, now) }

// resumed reports that this process was suspended, and asks for a list.
func (w *Watcher) resumed() {
	w.note(func(s *Status) { s.Suspensions++ })
	w.log.Warn("this process was suspended: reading the membership again before it picks instances")
	w.Relist(relistResumed)
}
