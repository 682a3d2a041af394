package sched

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrRemoved is wrapped by the cancellation cause of a leg whose instance can no longer answer.
var ErrRemoved = errors.New("the instance is not available any more")

// waiting lists the legs that wait for an instance and could be retried on another one. An engine that hangs
// sends nothing, not even an error: without this list a leg would wait for its deadline, although the proxy
// knows that no answer will come. The list is linked through the assignments, which are in the CPU cache
// anyway; a map per instance would not be.
type waiting struct {
	mu    sync.Mutex // guards first, and wait of all assignments in the chain; not held for anything else
	first *Assignment
}

// wait is the node of an assignment in the chain. The chain is ordered by the calls of Await, latest first.
type wait struct {
	leg      Leg // nil: the assignment is not in the chain
	since    time.Time
	answered bool // see Answered
	// overtaken is the number of legs that began later and were answered earlier, and
	// expected the longest time that one of them took, scaled to the size of this request.
	overtaken  int
	expected   time.Duration
	prev, next *Assignment
}

const (
	// overtakenBy is the number of legs that must overtake a leg before it counts as stuck.
	overtakenBy = 20
	// An overtaken leg is stuck only after overtakenFactor times the longest time that one of the faster legs
	// took, and at least overtakenAfter. On a busy instance, 20 short requests quickly overtake one with
	// images, or with a grammar to compile.
	overtakenFactor = 4
	overtakenAfter  = 5 * time.Second
)

// stuck reports whether others have overtaken the leg for too long.
func (w *wait) stuck(now time.Time) bool {
	return !w.answered && w.overtaken >= overtakenBy && now.Sub(w.since) >= max(overtakenAfter, overtakenFactor*w.expected)
}

// waiter is a copy of one leg that waits.
type waiter struct {
	instance *instance.Instance
	leg      Leg
	since    time.Time
	wanted   wanted
}

// wanted has the requirements of a request. They show later whether another instance could take the leg over.
type wanted struct {
	model    string
	labels   instance.Selector
	partner  connector.PairKey // of the other instance of the pair, zero for none
	tried    []instance.Key
	unpaired bool
	length   int // of the request's body, in bytes
}

// Leg is a request to one instance. Its methods must not block.
type Leg interface {
	// CallOff ends the leg, unless its answer has been committed meanwhile. Further calls have no effect.
	CallOff(cause error)
	// Overtaken is called repeatedly once at least n legs that began later have been answered and this leg
	// has waited far longer than they did. The leg decides whether to end.
	Overtaken(n int)
	// Silent is called repeatedly with the time for which the instance has not responded. The leg decides how
	// long it waits.
	Silent(d time.Duration)
}

// Await adds the leg to those that wait for the instance; since is the start of its wait. Until EndAwait the
// leg is cancelled, with a cause that wraps ErrRemoved, when no answer can come any more (see Removed). A
// second call replaces the leg and the time, and the leg counts as one that has just begun.
func (a *Assignment) Await(l Leg, since time.Time) {
	w := &a.counter.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.wait.leg != nil {
		w.remove(a)
	}
	a.wait = wait{leg: l, since: since, next: w.first}
	if w.first != nil {
		w.first.wait.prev = a
	}
	w.first = a
}

// EndAwait ends Await: the leg is over, or its answer is committed, so it must not be cancelled. Further
// calls have no effect.
func (a *Assignment) EndAwait() {
	w := &a.counter.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.wait.leg != nil {
		w.remove(a)
	}
}

// Answered records that the first content of the answer has arrived. The leg has overtaken all legs of its
// role and rank that began earlier and still wait. They are few, since the queue of an engine is first come,
// first served.
func (a *Assignment) Answered() {
	w := &a.counter.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.wait.leg == nil || a.wait.answered {
		return
	}
	a.wait.answered = true
	if a.wait.next == nil {
		return
	}
	took := time.Since(a.wait.since)
	for b := a.wait.next; b != nil; b = b.wait.next {
		if b.Instance.Role != a.Instance.Role || b.Rank != a.Rank || b.wait.answered || b.wait.since.After(a.wait.since) {
			continue
		}
		b.wait.overtaken++
		b.wait.expected = max(b.wait.expected, scaled(took, a.wanted.length, b.wanted.length))
	}
}

// scaled returns the time of a request of length to, if one of length from takes d: proportional to the
// length, but at least d.
func scaled(d time.Duration, from, to int) time.Duration {
	if from <= 0 || to <= from {
		return d
	}
	return time.Duration(float64(d) * float64(to) / float64(from))
}

// remove takes an assignment out of the chain; w.mu is held.
func (w *waiting) remove(a *Assignment) {
	if a.wait.prev != nil {
		a.wait.prev.wait.next = a.wait.next
	} else {
		w.first = a.wait.next
	}
	if a.wait.next != nil {
		a.wait.next.wait.prev = a.wait.prev
	}
	a.wait = wait{}
}

// stuck returns the legs that others have overtaken for too long, usually none.
func (w *waiting) stuck(now time.Time) (legs []Leg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := w.first; a != nil; a = a.wait.next {
		if a.wait.stuck(now) {
			legs = append(legs, a.wait.leg)
		}
	}
	return legs
}

// list copies the legs, so that nothing is called under the lock.
func (w *waiting) list() []waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []waiter
	for a := w.first; a != nil; a = a.wait.next {
		out = append(out, waiter{instance: a.Instance, leg: a.wait.leg, since: a.wait.since, wanted: a.wanted})
	}
	return out
}

// waitingSinceBefore returns the instance of a leg that began to wait before then; nil if there is no such
// leg.
func (w *waiting) waitingSinceBefore(then time.Time) *instance.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := w.first; a != nil; a = a.wait.next {
		if a.wait.since.Before(then) {
			return a.Instance
		}
	}
	return nil
}

// Legs cancels waiting legs that could be retried on another instance. New creates it.
type Legs struct {
	opts  *Options
	loads *Loads
	index *indexer
}

// checksPerSilence is the number of checks of the waiting legs per SilentAfter.
const checksPerSilence = 5

// Run supervises the waiting legs until ctx ends. When the membership changes, it cancels those whose
// instance can no longer answer. It calls Options.Silent for instances that keep legs waiting.
func (g *Legs) Run(ctx context.Context) {
	var checks sync.WaitGroup
	defer checks.Wait()
	checks.Go(func() { g.checkSilent(ctx) })
	instance.Follow(ctx, g.opts.Source.Snapshot, func(last, snap *instance.Snapshot) {
		if last == nil {
			for _, c := range g.loads.counters.busy() { // instances removed before Run began
				g.cancelLegs(c)
			}
			return
		}
		g.cancelRemoved(last, snap)
		g.moveDrained(last, snap)
	})
}

// moveDrained sets the time from which streams move away from instances whose MoveAfter has changed since the
// last snapshot.
func (g *Legs) moveDrained(last, snap *instance.Snapshot) {
	moveAfter := func(in *instance.Instance) time.Duration {
		if in == nil || in.MoveAfter == nil {
			return -1
		}
		return *in.MoveAfter
	}
	instance.Changes(last, snap, func(was, is *instance.Instance) {
		after, in, at := moveAfter(is), cmp.Or(is, was), int64(0)
		if after == moveAfter(was) {
			return
		}
		if after >= 0 {
			at = time.Now().Add(after).UnixNano()
		}
		if c, ok := g.loads.counters.find(in.Address); ok {
			c.hits.moves[in.Role.Index()].Store(at)
		}
	})
}

// checkSilent calls findSilent regularly until ctx ends.
func (g *Legs) checkSilent(ctx context.Context) {
	seen := map[*counter]observation{}
	sleep.Every(ctx, g.opts.SilentAfter/checksPerSilence, func(now time.Time) { seen = g.findSilent(now, seen) })
}

// observation is the state of findSilent for an engine with legs in flight.
type observation struct {
	progress uint64    // its counter
	since    time.Time // when progress had this value first
	asked    time.Time // last call of Options.Silent
}

// cancelRemoved cancels the legs whose instance can no longer answer since the last snapshot. A leg that
// began to wait meanwhile, with a pick from an older snapshot, has checked that itself (Removed).
func (g *Legs) cancelRemoved(last, snap *instance.Snapshot) {
	instance.Changes(last, snap, func(was, _ *instance.Instance) {
		if was == nil || was.View == instance.Pending {
			return
		}
		c, ok := g.loads.counters.find(was.Address)
		if !ok || g.loads.InFlight(was.Key) == 0 {
			return
		}
		g.cancelLegs(c)
	})
}

// cancelLegs cancels the legs of an engine whose instance can no longer answer, according to the newest
// snapshot. Some of the legs may have been picked from that snapshot.
func (g *Legs) cancelLegs(c *counter) {
	legs := c.waiting.list()
	now := g.opts.Source.Snapshot()
	for _, w := range legs {
		if err := g.whyRemoved(now, w.instance, w.wanted); err != nil {
			w.leg.CallOff(err)
		}
	}
}

// findSilent finds the legs that others have overtaken for too long, and the instances that keep legs waiting
// without a byte of an answer. A leg that waits for an ejected instance, or for one whose record says slow,
// is cancelled as soon as another instance can take it over. last is the result of the last call.
func (g *Legs) findSilent(now time.Time, last map[*counter]observation) (seen map[*counter]observation) {
	seen = make(map[*counter]observation, len(last))
	for _, c := range g.loads.counters.busy() {
		for _, stuck := range c.waiting.stuck(now) {
			stuck.Overtaken(overtakenBy)
		}
		l := last[c]
		if n := c.progress.Load(); n != l.progress {
			l.progress, l.since = n, now
		}
		in := c.waiting.waitingSinceBefore(now.Add(-g.opts.SilentAfter))
		if in == nil && c.entry(instance.Prefill).Load() == nil {
			in = c.entry(instance.Decode).Load() // committed streams wait for bytes, too
		}
		ask := in != nil && now.Sub(l.since) >= g.opts.SilentAfter
		if ask && now.Sub(l.asked) >= g.opts.SilentAfter && g.opts.Silent != nil {
			l.asked = now
			g.opts.Silent(in)
		}
		seen[c] = l
		if !ask {
			continue
		}
		silent := g.opts.Health.SilentFor(in.Key)
		is, known := g.opts.Source.Snapshot().Lookup(in.Key)
		out := g.opts.Health.Unreachable(in.Key) || known && is.Slow()
		if silent == 0 && !out {
			continue
		}
		for _, w := range c.waiting.list() {
			if out && now.Sub(w.since) >= g.opts.SilentAfter && g.hasAlternative(w.instance, w.wanted) {
				w.leg.CallOff(fmt.Errorf("%w: it does not respond, and another instance does", ErrRemoved))
				continue
			}
			w.leg.Silent(silent)
		}
	}
	return seen
}

// Abandon cancels the legs that wait for an instance which health has ejected. Legs that no other
// instance can take over continue to wait, unless it is dead: then no answer can come.
func (g *Legs) Abandon(k instance.Key, dead bool, why string) {
	c, ok := g.loads.counters.find(k.Address)
	if !ok {
		return
	}
	cause := fmt.Errorf("%w: %s", ErrRemoved, why)
	for _, w := range c.waiting.list() {
		if dead || g.hasAlternative(w.instance, w.wanted) {
			w.leg.CallOff(cause)
		}
	}
}

// hasAlternative reports whether another instance could take a leg over now. For a prefill
// leg that may be a decode instance which computes the prompt itself.
func (g *Legs) hasAlternative(in *instance.Instance, w wanted) bool {
	ix := g.index.current()
	r := Request{Role: in.Role, Model: w.model, Labels: w.labels, Tried: w.tried, Unpaired: w.unpaired}
	if w.partner != (connector.PairKey{}) {
		r.Partner = &Assignment{PairKey: w.partner}
	}
	if g.hasOther(ix, in, &r) {
		return true
	}
	return g.opts.PrefillOptional && in.Role == instance.Prefill && !w.unpaired &&
		g.hasOther(ix, in, &Request{Role: instance.Decode, Model: w.model, Labels: w.labels})
}

// hasOther reports whether another instance may be picked that responds, and is neither slow nor ejected.
func (g *Legs) hasOther(ix *index, in *instance.Instance, r *Request) bool {
	list, known := ix.candidates(r.Role, r.Model)
	if !known {
		return false
	}
	for i := range list.items {
		k := list.items[i].Instance.Key
		if k.Address != in.Address && !list.facts[i].slow && list.fits(i, ix, r) && g.opts.Health.Available(k) && !g.opts.Health.Failing(k, r.Model) && g.opts.Health.SilentFor(k) == 0 {
			return true
		}
	}
	return false
}

// Removed returns the reason why no answer can come from the instance of a pick any more: it left, was
// removed, is down, or has another incarnation. It is nil if an answer can come. Draining and cordoned
// instances finish their requests.
func (g *Legs) Removed(a *Assignment) error {
	snap := g.opts.Source.Snapshot()
	// Usually the instance is in the newest snapshot, and its counter has it as an entry: then no search is
	// needed. A counter that was dropped has no entries.
	if _, ready := g.index.find(snap); ready && a.counter.entry(a.Instance.Role).Load() == a.Instance {
		return nil
	}
	return g.whyRemoved(snap, a.Instance, a.wanted)
}

// whyRemoved returns the reason why a leg should not wait for an instance any longer, nil if it
// should. A leg waits for a slow instance, whose engine did not answer its agent's probes, while no
// other instance can take it over.
func (g *Legs) whyRemoved(snap *instance.Snapshot, in *instance.Instance, w wanted) error {
	now, ok := snap.Lookup(in.Key)
	switch {
	case !ok:
		return fmt.Errorf("%w: it left the membership", ErrRemoved)
	case now == in:
		return nil
	case now.Incarnation() != in.Incarnation():
		return fmt.Errorf("%w: it was restarted", ErrRemoved)
	case now.Intent == instance.Removed:
		return fmt.Errorf("%w: it was removed", ErrRemoved)
	case now.Slow() && !g.hasAlternative(in, w):
		return nil
	case now.Record.State == instance.Down:
		return fmt.Errorf("%w: its record says down", ErrRemoved)
	}
	return nil
}
