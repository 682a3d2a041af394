package load

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// Plan is what to send where.
type Plan struct {
	// Addresses take the requests, in turn by connection.
	Addresses []string
	// Prefill, when given, makes the generator do both hops itself: the first
	// leg goes there, the second to Addresses.
	Prefill []string
	Shape   answer.Shape
	// Conns is the number of clients, each with a connection of its own.
	Conns int
	// Rate, when given, makes it an open loop: requests per second, at random
	// times (Poisson) by Seed.
	Rate float64
	Seed uint64
	// Ramp spreads the starts of a closed loop's clients over this time.
	Ramp time.Duration
	// Opening bounds the clients of a closed loop whose first answer has not
	// begun, so that a slow start is slow, not a flood; 0 is no bound.
	Opening int
	// Leave is the share of requests whose client leaves before the end, at a
	// random token.
	Leave float64
	// Strict expects what the strict simulator says, see package fakevllm.
	Strict bool
}

// ErrPlan is wrapped by complaints about a plan.
var ErrPlan = errors.New("no load like that")

// Generator is a running load.
type Generator struct {
	plan    Plan
	began   time.Time // now counts from it
	workers []*worker
	tally   atomic.Pointer[Tally]

	open, running   atomic.Int64
	ending, cutting atomic.Bool
	cancel          context.CancelFunc
	opening         chan struct{} // a place for each that may open, nil for no bound
	done            chan struct{} // closed when all workers are gone

	mu   sync.Mutex // guards what follows
	idle []*prefillLeg
	legs []*prefillLeg // all of them
}

// Start begins the load. Stop must be called.
func Start(ctx context.Context, p Plan) (*Generator, error) {
	if p.Conns < 1 || len(p.Addresses) == 0 || p.Shape.Tokens < 1 {
		return nil, ErrPlan
	}
	ctx, cancel := context.WithCancel(ctx)
	g := &Generator{plan: p, began: time.Now(), cancel: cancel, done: make(chan struct{})}
	g.tally.Store(new(Tally))
	if p.Opening > 0 {
		g.opening = make(chan struct{}, p.Opening)
	}
	for i := range p.Conns {
		w, err := g.newWorker(i)
		if err != nil {
			cancel()
			return nil, err
		}
		g.workers = append(g.workers, w)
	}
	var work sync.WaitGroup
	if p.Rate > 0 {
		g.startOpen(ctx, &work)
	} else {
		for i, w := range g.workers {
			work.Go(func() {
				defer w.decode.drop()
				if wait(ctx, p.Ramp*time.Duration(i)/time.Duration(p.Conns)) {
					g.closedLoop(ctx, w)
				}
			})
		}
	}
	go func() { // Stop waits for it
		work.Wait()
		g.cutPrefills()
		close(g.done)
	}()
	return g, nil
}

// now is the time since the beginning: one clock read, where time.Now takes two.
func (g *Generator) now() time.Duration { return time.Since(g.began) }

// pauseAfterFailure keeps a target that is down from being asked a million
// times.
const pauseAfterFailure = 10 * time.Millisecond

func (g *Generator) closedLoop(ctx context.Context, w *worker) {
	if g.opening != nil {
		select {
		case g.opening <- struct{}{}:
			w.opening = true
		case <-ctx.Done():
			return
		}
	}
	for !g.ending.Load() && ctx.Err() == nil {
		if !w.one(ctx, g.now()) && !wait(ctx, pauseAfterFailure) {
			return
		}
	}
}

// startOpen runs one clock, and workers that wait for what it sends.
func (g *Generator) startOpen(ctx context.Context, work *sync.WaitGroup) {
	starts := make(chan time.Duration)
	work.Go(func() {
		defer close(starts)
		rng := rand.New(rand.NewPCG(g.plan.Seed, 1<<63))
		at := g.now()
		for {
			at += time.Duration(rng.ExpFloat64() / g.plan.Rate * float64(time.Second))
			if !wait(ctx, at-g.now()) || g.ending.Load() {
				return
			}
			select {
			case starts <- at:
			case <-ctx.Done():
				return
			}
		}
	})
	for _, w := range g.workers {
		work.Go(func() {
			defer w.decode.drop()
			for at := range starts {
				w.one(ctx, at)
			}
		})
	}
}

// wait waits for d, or for the end of ctx, which it tells by false.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Swap counts in other counters from now on, which need not be new, and returns the
// former ones. A request counts where it ends. Whoever is in the middle of
// counting may still change the former ones once.
func (g *Generator) Swap(to *Tally) *Tally { return g.tally.Swap(to) }

// Tally returns the current counters.
func (g *Generator) Tally() *Tally { return g.tally.Load() }

// Open is the number of answers under way whose first token has come.
func (g *Generator) Open() int { return int(g.open.Load()) }

// Running is the number of requests under way.
func (g *Generator) Running() int { return int(g.running.Load()) }

// Vanish ends every connection at once, as if the clients' machine had gone,
// and no requests follow. What was under way counts as left. It returns when
// the last connection is closed.
func (g *Generator) Vanish() {
	g.ending.Store(true)
	g.cutting.Store(true)
	g.cancel()
	for _, w := range g.workers {
		w.decode.cut()
	}
	g.cutPrefills()
}

// Stop sends nothing more, lets what is under way end for at most grace, cuts
// the rest, and waits until everything is gone. It reports how many requests were
// cut.
func (g *Generator) Stop(grace time.Duration) int {
	g.ending.Store(true)
	if grace > 0 {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-g.done:
		case <-timer.C:
		}
	}
	cut := g.Running()
	g.Vanish()
	<-g.done
	return cut
}
