package watch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

// A process that was suspended, by SIGSTOP or with its machine, continues with an outdated
// membership. Its first pick must not use an instance that was drained meanwhile.

// freshTimeout bounds the time that picks wait for the list after a suspension. While etcd is
// unavailable, they use the old membership.
const freshTimeout = time.Second

// gapSince returns the time since this process was last known to run, 0 if last is nil. The
// monotonic clock continues during SIGSTOP, but stops while the machine sleeps, so the wall clock
// is compared, too. If the wall clock is set forward, the only effect is an additional list.
func gapSince(last *time.Time, now time.Time) time.Duration {
	if last == nil {
		return 0
	}
	return max(now.Sub(*last), now.Round(0).Sub(last.Round(0)))
}

// pause is a time in which this process did not run.
type pause struct{ from, to time.Time }

// resumeLag is how long after a pause data may be read that arrived during it.
const resumeLag = 2 * time.Second

// gate blocks picks until a list that was requested after the suspension has been published.
type gate struct {
	requested int64         // the request that the list must answer
	closed    time.Time     // when the suspension was noticed
	until     time.Time     // when waiting ends in any case
	open      chan struct{} // closed by the list; shared with the previous gate if that is not open
}

// suspension detects that this process did not run, and then blocks picks.
type suspension struct {
	after time.Duration // shortest gap that counts as a suspension
	found func()        // requests a list

	ran       atomic.Pointer[time.Time] // last time at which this process was known to run
	last      atomic.Pointer[pause]     // last pause of after/4 or longer
	requested atomic.Int64              // number of lists requested after suspensions
	gate      atomic.Pointer[gate]      // set from a suspension until the list after it
}

// beat records that this process runs.
func (s *suspension) beat(now time.Time) { s.ran.Store(&now) }

// run notices suspensions until ctx ends.
func (s *suspension) run(ctx context.Context) {
	sleep.Every(ctx, max(s.after/8, time.Millisecond), func(time.Time) { s.noticeGap(time.Now()) })
}

// noticeGap closes the gate if this process has not run for at least s.after.
func (s *suspension) noticeGap(now time.Time) {
	last := s.ran.Load()
	gap := gapSince(last, now)
	if gap >= s.after/4 {
		s.last.Store(&pause{now.Add(-gap), now})
	}
	for gap >= s.after {
		old := s.gate.Load()
		if old != nil && gapSince(last, old.closed) >= s.after {
			break // another goroutine has noticed this suspension
		}
		g := &gate{requested: s.requested.Add(1), closed: now, until: now.Add(freshTimeout), open: make(chan struct{})}
		if old != nil {
			g.open = old.open
		}
		if s.gate.CompareAndSwap(old, g) {
			s.found()
			break
		}
	}
	s.beat(now)
}

// openGate unblocks picks after the publication of a list that answers the first requested lists,
// if these include the request of the gate.
func (s *suspension) openGate(requested int64) {
	if g := s.gate.Load(); g != nil && requested >= g.requested && s.gate.CompareAndSwap(g, nil) {
		close(g.open)
	}
}

// Fresh is called before instances are picked. It returns at once, unless this
// process was suspended: then it waits for a list, for at most one second, or
// until ctx ends. Without a suspension it makes two atomic loads. now is a recent
// reading of the clock.
func (w *Watcher) Fresh(ctx context.Context, now time.Time) {
	s := &w.suspension
	if s.gate.Load() == nil && gapSince(s.ran.Load(), now) < s.after {
		return
	}
	s.noticeGap(now)
	g := s.gate.Load()
	if g == nil || !now.Before(g.until) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.until.Sub(now))
	defer cancel()
	select {
	case <-g.open:
	case <-ctx.Done():
	}
}

// ReceivedFrom returns the earliest time, not before since, at which data that is read now may have
// arrived: it may have arrived during a pause of this process that has just ended.
func (w *Watcher) ReceivedFrom(since, now time.Time) time.Time {
	s := &w.suspension
	if gapSince(s.ran.Load(), now) >= s.after/4 {
		s.noticeGap(now)
	}
	if p := s.last.Load(); p != nil && p.to.After(since) && now.Sub(p.to) < resumeLag {
		if p.from.After(since) {
			return p.from
		}
		return since
	}
	return now
}

// resumed logs that this process was suspended, and requests a list.
func (w *Watcher) resumed() {
	w.note(func(s *Status) { s.Suspensions++ })
	w.log.Warn("this process was suspended: reading the membership again before it picks instances")
	w.Relist(relistResumed)
}
