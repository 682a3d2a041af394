package sched

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrGone is wrapped by the cause of a leg that was ended because nothing more
// could come from its instance.
var ErrGone = errors.New("the instance is gone")

// waiting are the legs that wait for an instance and could go elsewhere. An
// engine that hangs sends nothing, not even an error: without this a leg would
// wait for its deadline, although it is known that no answer will come. They are chained through
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
	since    time.Time
	wanted   wanted
}

// wanted is what a request wants of an instance, kept to find out whether another
// one would do.
type wanted struct {
	model   string
	partner pairKey // the other half of the pair, zero for none
	tried   []instance.Key
	alone   bool
}

// Leg is a request to an instance that can be ended.
type Leg interface {
	// CallOff ends it unless its answer has been committed meanwhile. It must
	// not block; more calls do no harm.
	CallOff(cause error)
	// Silent is called from time to time with how long the instance has given no sign of
	// life; the leg decides how long it waits. It must not block.
	Silent(d time.Duration)
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

// EndAwait ends Await: the leg is over, or its answer is committed and must be
// carried to its end. More calls do no harm.
func (a *Assignment) EndAwait() {
	w := &a.counter.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.wait.leg == nil {
		return
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

// waitingSinceBefore gives the instance of a leg that began to wait before then, nil if none did.
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

// Legs looks after the legs that wait for an instance and could go elsewhere.
type Legs struct {
	opts  *Options
	loads *Loads
	index *indexer
}

// checksPerSilence is how many looks at the waiting legs there are in SilentAfter.
const checksPerSilence = 5

// Run looks after the waiting legs until ctx ends: it cancels those whose
// instance is gone as the membership changes, and has instances asked that
// keep legs waiting.
func (g *Legs) Run(ctx context.Context) {
	tick := time.NewTicker(g.opts.SilentAfter / checksPerSilence)
	defer tick.Stop()
	looks := map[*counter]observation{}
	last := g.opts.Source.Snapshot()
	for _, c := range g.loads.counters.busy() { // what happened before Run began
		g.cancelLegs(c)
	}
	for {
		snap := g.opts.Source.Snapshot()
		g.cancelGone(last, snap)
		last = snap
		select {
		case <-ctx.Done():
			return
		case <-snap.Changed():
		case now := <-tick.C:
			g.findSilent(now, looks)
		}
	}
}

// observation is what was seen of an instance that has something in flight.
type observation struct {
	heard uint64    // its signs of life
	since time.Time // when they were so many for the first time
	asked time.Time // when it was called silent last
	seen  time.Time // when it was looked at last
}

// cancelGone calls off the legs that wait for what has changed since the last
// snapshot that was looked at. A leg that began to wait meanwhile, with a pick
// from an older one, has looked for itself (Gone).
func (g *Legs) cancelGone(last, snap *instance.Snapshot) {
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

// cancelLegs calls off the legs that wait for an instance which is gone. What counts is
// the newest snapshot: a leg among them may be of a pick from it.
func (g *Legs) cancelLegs(c *counter) {
	legs := c.waiting.list()
	now := g.opts.Source.Snapshot()
	for _, w := range legs {
		if err := g.gone(now, w.instance, w.wanted); err != nil {
			w.leg.CallOff(err)
		}
	}
}

// findSilent finds the instances that keep legs waiting without any sign of
// life. Legs that wait for one which is out, or slow by its agent's word, go
// elsewhere as soon as there is an elsewhere.
func (g *Legs) findSilent(now time.Time, looks map[*counter]observation) {
	waitFor := g.loads.counters.busy()
	for _, c := range waitFor {
		l := looks[c]
		l.seen = now
		looks[c] = l
	}
	maps.DeleteFunc(looks, func(_ *counter, l observation) bool { return !l.seen.Equal(now) })
	for _, c := range waitFor {
		l := looks[c]
		if heard := c.heard.Load(); heard != l.heard {
			l.heard, l.since = heard, now
		}
		in := c.waiting.waitingSinceBefore(now.Add(-g.opts.SilentAfter))
		ask := in != nil && now.Sub(l.since) >= g.opts.SilentAfter
		if ask && now.Sub(l.asked) >= g.opts.SilentAfter && g.opts.Silent != nil {
			l.asked = now
			g.opts.Silent(in)
		}
		looks[c] = l
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
				w.leg.CallOff(fmt.Errorf("%w: it is silent, and another one answers", ErrGone))
				continue
			}
			w.leg.Silent(silent)
		}
	}
}

// Abandon cancels the legs that wait for an instance, for a caller that knows before
// the membership does that it is out. Those for which no other instance would do
// are left to wait, unless nothing can come from this one any more.
func (g *Legs) Abandon(k instance.Key, dead bool, why string) {
	c, ok := g.loads.counters.find(k.Address)
	if !ok {
		return
	}
	cause := fmt.Errorf("%w: %s", ErrGone, why)
	for _, w := range c.waiting.list() {
		if dead || g.hasAlternative(w.instance, w.wanted) {
			w.leg.CallOff(cause)
		}
	}
}

// hasAlternative tells whether another instance could take a leg over now. For a prefill
// leg that may be a decode instance which computes the prompt itself.
func (g *Legs) hasAlternative(in *instance.Instance, w wanted) bool {
	ix := g.index.current()
	r := Request{Role: in.Role, Model: w.model, Tried: w.tried, Alone: w.alone}
	if w.partner != (pairKey{}) {
		r.Partner = &Assignment{Connector: w.partner.connector, Build: w.partner.build, Blocks: w.partner.blocks}
	}
	if g.hasOther(ix, in, &r) {
		return true
	}
	return g.opts.PrefillOptional && in.Role == instance.Prefill && !w.alone &&
		g.hasOther(ix, in, &Request{Role: instance.Decode, Model: w.model})
}

// hasOther tells whether an instance other than this one may be picked with hope.
func (g *Legs) hasOther(ix *index, in *instance.Instance, r *Request) bool {
	list, known := ix.candidates(r.Role, r.Model)
	if !known {
		return false
	}
	for i := range list.items {
		k := list.items[i].Instance.Key
		if k.Address != in.Address && !list.facts[i].slow && list.fits(i, ix, r) && g.opts.Health.Available(k) {
			return true
		}
	}
	return false
}

// Gone tells why nothing more can come from the instance of a pick: it left,
// was removed, turned down, or another incarnation stands at its address. nil:
// nothing of that. Draining and cordoned ones finish what they have.
func (g *Legs) Gone(a *Assignment) error {
	snap := g.opts.Source.Snapshot()
	// Nearly always it stands in the snapshot itself, which its counter knows: no
	// search, and the counter is at hand. One that was let go of knows of none.
	if ix := g.index.inUse.Load(); ix != nil && ix.snapshot == snap && a.counter.entry(a.Instance.Role).Load() == a.Instance {
		return nil
	}
	return g.gone(snap, a.Instance, a.wanted)
}

// gone tells why a leg that waits for an instance should not wait any longer. One
// whose engine only left its agent's probes unanswered is waited for while no
// other would do.
func (g *Legs) gone(snap *instance.Snapshot, in *instance.Instance, w wanted) error {
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
	case now.Slow() && !g.hasAlternative(in, w):
		return nil
	case now.Record.State == instance.Down:
		return fmt.Errorf("%w: its record says down", ErrGone)
	}
	return nil
}
