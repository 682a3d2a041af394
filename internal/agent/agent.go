package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// Phase is where an agent is in its life.
type Phase string

// The phases, in order; Serving and Down alternate.
const (
	Probing     Phase = "probing"     // the engine has not answered rightly yet
	Registering Phase = "registering" // it has; etcd has not confirmed the record
	Serving     Phase = "serving"
	Down        Phase = "down"
	Draining    Phase = "draining"
	Gone        Phase = "gone"
	// Restarting is shown between two lives of an engine that the agent's program
	// has started: there is no Agent then.
	Restarting Phase = "restarting"
)

// Engine is the one engine this agent stands beside.
type Engine interface {
	// Probe asks whether the engine is alive and what it serves. An error that
	// is vllm.ErrRefused means that nobody listens.
	Probe(ctx context.Context) (instance.Facts, error)
	// Load reads the engine's own counters.
	Load(ctx context.Context) (vllm.Stats, error)
}

// Registrar keeps the record in etcd as it was last set. Set does not wait for
// etcd; Settle does, until the last Set has arrived, or is not to be written now, and
// gives false if ctx ends before. Revoke ends the registration and is bounded in time.
type Registrar interface {
	Set(rec instance.Record)
	Settle(ctx context.Context) bool
	Revoke(ctx context.Context) error
}

// Limits of what an agent waits for.
const (
	// idleAfter is how many idle readings in a row end a drain: a request that a
	// proxy sent just before it saw "draining" shows up in the second.
	idleAfter = 2

	firstBackoff = 500 * time.Millisecond
	drainPoll    = 500 * time.Millisecond

	// settleLimit is how long the last word before a revoke may take to arrive.
	settleLimit = time.Second
	// goodbyeLimit is how long an engine does not count as drained because etcd has
	// not heard of it. An election takes it a second or two.
	goodbyeLimit = 5 * time.Second
)

// MaxBackoff is the longest pause between two probes of an engine that has not
// answered yet.
const MaxBackoff = 5 * time.Second

// Status is a copy of where the agent stands.
type Status struct {
	Phase      Phase
	Beat       time.Time       // when Run last took a turn; zero before the first
	Registered bool            // etcd holds the record, as far as is known
	Record     instance.Record // last one set; zero before the first
	Reason     string          // why the engine is not serving; "" when it is
}

// Agent is one engine's agent. Make it with New, call Run once.
type Agent struct {
	engine    Engine
	registrar Registrar
	o         Options
	hurry     chan struct{}
	hurryOnce sync.Once
	ticks     func(time.Duration) (<-chan time.Time, func())

	// The following belong to Run's goroutine.
	rec        instance.Record
	set        bool // rec has been given to the registrar
	up         bool // rec says ready
	tally      tally
	backoff    time.Duration
	life       life
	load       loadWatch
	lastShown  string // last reason logged
	lastModels int    // how many models the engine listed
	ranks      ranks

	mu     sync.Mutex // guards status
	status Status
}

// New makes an agent; nothing happens before Run.
func New(engine Engine, registrar Registrar, o Options) *Agent {
	o.fill()
	return &Agent{
		engine: engine, registrar: registrar, o: o,
		hurry:  make(chan struct{}),
		ticks:  newTicks,
		life:   life{host: o.Base.HostID, key: o.Key},
		tally:  tally{period: max(o.ProbeTimeout, o.ProbeInterval), slowAfter: o.SlowAfter},
		status: Status{Phase: Probing},
	}
}

// Run lives the whole life. It returns when ctx has ended and the drain that
// follows is over, or when the engine's process has ended; the only errors are
// those of the final revoke, after which the key goes with its lease.
func (a *Agent) Run(ctx context.Context) error {
	a.serve(ctx)
	end := a.drain
	if a.exited() {
		end = a.withdraw
	}
	err := end(context.WithoutCancel(ctx))
	a.update(func(s *Status) { s.Phase = Gone; s.Registered = false })
	return err
}

// Hurry makes a drain, the present one or the one to come, skip its wait.
func (a *Agent) Hurry() { a.hurryOnce.Do(func() { close(a.hurry) }) }

// Registered tells the agent whether etcd holds its record. It may be called
// from any goroutine.
func (a *Agent) Registered(ok bool) {
	a.update(func(s *Status) {
		s.Registered = ok
		switch {
		case ok && s.Phase == Registering && s.Record.State != instance.Starting:
			s.Phase = Serving
		case !ok && s.Phase == Serving:
			s.Phase = Registering
		}
	})
}

// Status may be called from any goroutine.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.Record = clone(s.Record)
	return s
}

func (a *Agent) update(f func(*Status)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.status)
}

// serve probes until ctx ends, or the engine's process has: that ends a probe that
// hangs, too. The next probe is due one delay after the start of the last, so that a
// hung engine does not stretch the period.
func (a *Agent) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer endsWith(ctx, cancel, a.o.Exited, nil)()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		start := time.Now()
		a.beat()
		facts, err := a.probe(ctx)
		if ctx.Err() != nil || a.exited() {
			return // an interrupted probe says nothing about the engine
		}
		delay := a.judge(facts, err)
		timer.Reset(max(0, delay-time.Since(start)))
	}
}

func (a *Agent) beat() { a.update(func(s *Status) { s.Beat = time.Now() }) }

// exited tells whether the engine's process is known to be gone.
func (a *Agent) exited() bool {
	select {
	case <-a.o.Exited:
		return true
	default:
		return false
	}
}

// probe asks the engine once. Its counters are read along the way; an engine
// that does not show them is not the worse for it.
func (a *Agent) probe(ctx context.Context) (instance.Facts, error) {
	ticks, end := a.ticks(a.o.ProbeTimeout / fairTicks)
	defer end()
	pctx, stop := allow(ctx, a.o.ProbeTimeout, ticks, a.beat)
	defer stop()
	facts, err := a.engine.Probe(pctx)
	switch {
	case err == nil:
	case errors.Is(context.Cause(pctx), errStarved):
		return instance.Facts{}, errStarved
	default:
		return instance.Facts{}, err
	}
	if !facts.Serves(a.o.Model, a.o.StrictModel) {
		return instance.Facts{}, &WrongModelError{Want: a.o.Model, Have: facts.Models}
	}
	if stats, err := a.engine.Load(pctx); err == nil {
		a.load.see(stats, time.Now())
		if facts.StartedAt.IsZero() {
			facts.StartedAt = stats.StartedAt
		}
		facts.DPSize = stats.Ranks
		if stats.NIXL {
			facts.Transfer = instance.TransferNIXL
		}
	}
	if a.o.EngineIDs != nil {
		a.ranks.ask(pctx, a.o.EngineIDs, a.life.isNew(facts.StartedAt))
	}
	return facts, nil
}

// judge moves the state machine by one probe and says when the next one is due.
func (a *Agent) judge(facts instance.Facts, err error) time.Duration {
	if errors.Is(err, vllm.ErrRefused) {
		a.life.refused()
	}
	switch {
	case err == nil:
		a.good(facts)
		return a.o.ProbeInterval
	case !a.set: // probing
		a.showReason(err, "not registered: ")
		if a.backoff == 0 {
			a.backoff = firstBackoff
		} else {
			a.backoff = min(2*a.backoff, MaxBackoff)
		}
		return a.backoff
	case errors.Is(err, vllm.ErrNotAsked), errors.Is(err, errStarved):
		// The engine has had no part in it.
		a.showReason(err, "the engine could not be asked: ")
		return a.o.ProbeInterval
	default:
		a.bad(err)
		if a.up && errors.Is(err, vllm.ErrRefused) {
			return min(a.o.ProbeInterval, firstBackoff) // refusing is quick and cheap: be sure soon
		}
		return a.o.ProbeInterval
	}
}

func (a *Agent) good(facts instance.Facts) {
	if sure := a.tally.good(); a.set && !a.up && !sure {
		return
	}
	fresh := a.life.seen(facts.StartedAt)
	rec := a.record(facts)
	log := a.o.Log.WithFields(logrus.Fields{"incarnation": rec.ID, "models": printable(rec.Models)})
	switch {
	case !a.set:
		log.Info("engine answers: registering")
	case !a.up:
		log.Info("engine answers again: ready")
	case fresh:
		log.Warn("engine was restarted: new incarnation")
	}
	if a.ranks.err != nil {
		a.showStarting()
	} else if a.rec.State == instance.Starting {
		log.WithField("engine_ids", rec.EngineIDs).Info("bootstrap server answers: ready")
	}
	remark(log, a.rec, rec)
	if n := len(facts.Models); len(rec.Models) < n && n != a.lastModels {
		log.Warnf("the record has room for %d of the engine's %d models", len(rec.Models), n)
	}
	a.up, a.lastModels = true, len(facts.Models)
	if a.ranks.err == nil {
		a.lastShown = ""
	}
	a.put(rec)
}

func (a *Agent) bad(err error) {
	cause, down := a.tally.bad(err)
	dead := down && cause == "" // for certain
	switch {
	case !a.up && !(dead && a.rec.Cause != ""):
		a.showReason(err, "engine stays down: ")
		return
	case !down && cause == "":
		a.o.Log.WithError(err).WithField("failed", a.tally.fails).Warn("probe failed")
		return
	case !down:
		a.o.Log.WithError(err).WithField("unanswered", a.tally.silent).Warn("probe not answered")
		return
	case dead:
		a.showReason(err, "engine is down: ")
	default:
		a.showReason(err, "engine is slow: ")
	}
	a.up = false
	rec := clone(a.rec)
	rec.State, rec.Cause = instance.Down, cause
	a.put(rec)
}

// put hands a record to the registrar if it says anything new.
func (a *Agent) put(rec instance.Record) {
	changed := !a.set || !equal(a.rec, rec)
	a.rec, a.set = rec, true
	a.update(func(s *Status) {
		s.Record = rec
		switch {
		case rec.State == instance.Draining:
			s.Phase = Draining
		case rec.State == instance.Down:
			s.Phase = Down
		case rec.State == instance.Starting:
			s.Phase = Registering // the reason is there already
		case s.Registered:
			s.Phase, s.Reason = Serving, ""
		default:
			s.Phase, s.Reason = Registering, ""
		}
	})
	if changed {
		a.registrar.Set(clone(rec))
	}
}

// showReason logs why the engine does not serve, once per reason.
func (a *Agent) showReason(err error, prefix string) {
	text := err.Error()
	a.update(func(s *Status) { s.Reason = text })
	if text == a.lastShown {
		a.o.Log.Debug(prefix + text)
		return
	}
	a.lastShown = text
	a.o.Log.Warn(prefix + text)
}
