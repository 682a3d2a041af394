package sched

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrGone is wrapped by the cause of a leg that was ended because nothing more
// could come from its instance.
var ErrGone = errors.New("the instance is gone")

// waiting are the legs that wait for an instance and could go elsewhere. An
// engine that hangs sends nothing, not even an error: without this a leg would
// wait for its deadline though everybody knows better. They are chained through
// their assignments, which are at hand anyway: with many instances a map for
// each would be cold memory at every request.
type waiting struct {
	mu    sync.Mutex // guards first, and wait of all assignments in the chain; held for that only
	first *Assignment
}

// wait is the place of an assignment in the chain.
type wait struct {
	leg        Leg // nil: it is not in it
	since      time.Time
	prev, next *Assignment
}

// waiter is one leg that waits, as it is at one moment.
type waiter struct {
	instance *instance.Instance
	leg      Leg
}

// Leg is a request to an instance that can be ended.
type Leg interface {
	// CallOff ends it unless its answer has been committed meanwhile. It must
	// not block; more calls do no harm.
	CallOff(cause error)
}

// Await has the leg cancelled, with a cause that wraps ErrGone, when its
// instance turns out to be gone. It waits since then, or a little later. It ends
// with Settle.
func (a *Assignment) Await(l Leg, since time.Time) {
	w := &a.counter.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.wait.leg == nil {
		a.wait.next = w.first
		if w.first != nil {
			w.first.wait.prev = a
		}
		w.first = a
	}
	a.wait.leg, a.wait.since = l, since
}

// Settle ends Await: the leg is over, or its answer is committed and must be
// carried to its end. More calls do no harm. alone tells that nobody was given the
// leg while it waited, so that nobody calls it off any more.
func (a *Assignment) Settle() (alone bool) {
	w := &a.counter.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.wait.leg == nil {
		return !a.listed
	}
	if a.wait.prev != nil {
		a.wait.prev.wait.next = a.wait.next
	} else {
		w.first = a.wait.next
	}
	if a.wait.next != nil {
		a.wait.next.wait.prev = a.wait.prev
	}
	a.wait = wait{}
	return !a.listed
}

// list copies the legs, so that nothing is called under the lock.
func (w *waiting) list() []waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []waiter
	for a := w.first; a != nil; a = a.wait.next {
		a.listed = true
		out = append(out, waiter{a.Instance, a.wait.leg})
	}
	return out
}

// silent gives the instance of a leg that began to wait before then, nil if none did.
func (w *waiting) silent(then time.Time) *instance.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := w.first; a != nil; a = a.wait.next {
		if a.wait.since.Before(then) {
			return a.Instance
		}
	}
	return nil
}

// Run looks after the waiting legs until ctx ends: it cancels those whose
// instance is gone as the membership changes, and has instances asked that
// keep legs waiting.
func (s *Scheduler) Run(ctx context.Context) {
	tick := time.NewTicker(s.opts.SilentAfter / 3)
	defer tick.Stop()
	var last *instance.Snapshot
	for {
		snap := s.opts.Source.Snapshot()
		s.cancelGone(last, snap)
		last = snap
		select {
		case <-ctx.Done():
			return
		case <-snap.Changed():
		case now := <-tick.C:
			s.suspectSilent(now)
		}
	}
}

// cancelGone calls off the legs that wait for what has changed since the last
// snapshot that was looked at. A leg that began to wait meanwhile, with a pick
// from an older one, has looked for itself (Gone).
func (s *Scheduler) cancelGone(last, snap *instance.Snapshot) {
	instance.Changes(last, snap, func(was, _ *instance.Instance) {
		if was == nil || was.View == instance.Pending {
			return
		}
		c, ok := s.counters.find(was.Key)
		if !ok || c.inFlight.Load() == 0 {
			return
		}
		for _, l := range c.waiting.list() {
			if err := gone(snap, l.instance); err != nil {
				l.leg.CallOff(err)
			}
		}
	})
}

func (s *Scheduler) suspectSilent(now time.Time) {
	if s.opts.Silent == nil {
		return
	}
	s.counters.eachCounter(func(_ instance.Key, c *counter) {
		if c.inFlight.Load() == 0 {
			return
		}
		if in := c.waiting.silent(now.Add(-s.opts.SilentAfter)); in != nil {
			s.opts.Silent(in)
		}
	})
}

// Abandon cancels every leg that waits for an instance, for whoever knows
// before the membership does that nothing will come. Unless it must, a leg is
// left to its fate when there is nobody else to go to.
func (s *Scheduler) Abandon(k instance.Key, must bool, why string) {
	c, ok := s.counters.find(k)
	if !ok || (!must && !s.other(k)) {
		return
	}
	cause := fmt.Errorf("%w: %s", ErrGone, why)
	for _, l := range c.waiting.list() {
		l.leg.CallOff(cause)
	}
}

// other tells whether another instance of the role is in.
func (s *Scheduler) other(k instance.Key) bool {
	for _, in := range s.opts.Source.Snapshot().Usable(k.Role) {
		if in.Key != k && s.opts.Health.Available(in.Key) {
			return true
		}
	}
	return false
}

// Gone tells why nothing more can come from the instance of a pick: it left,
// was removed, turned down, or another incarnation stands at its address. nil:
// nothing of that. Draining and cordoned ones finish what they have.
func (s *Scheduler) Gone(a *Assignment) error {
	snap := s.opts.Source.Snapshot()
	// Nearly always it stands in the snapshot itself, which its counter knows: no
	// search, and the counter is at hand. One that was let go of knows of none.
	if ix := s.index.Load(); ix != nil && ix.snapshot == snap && a.counter.now.Load() == a.Instance {
		return nil
	}
	return gone(snap, a.Instance)
}

func gone(snap *instance.Snapshot, in *instance.Instance) error {
	now, ok := snap.Lookup(in.Key)
	switch {
	case !ok:
		return fmt.Errorf("%w: it left the membership", ErrGone)
	case now == in:
		return nil
	case now.Incarnation() != in.Incarnation():
		return fmt.Errorf("%w: a new incarnation stands at its address", ErrGone)
	case now.Intent == instance.Removed:
		return fmt.Errorf("%w: it was removed", ErrGone)
	case now.Record.State == instance.Down:
		return fmt.Errorf("%w: its record says down", ErrGone)
	}
	return nil
}
