package agent

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Phase is the state of an agent's state machine.
type Phase string

// The phases, in order; Serving and Down alternate.
const (
	Probing     Phase = "probing"     // the engine has not answered correctly yet
	Registering Phase = "registering" // the engine has answered; etcd has not confirmed the record
	Serving     Phase = "serving"
	Down        Phase = "down"
	Draining    Phase = "draining"
	Gone        Phase = "gone"
	// Restarting is the phase between two starts of an engine by the agent's program, when
	// there is no Agent.
	Restarting Phase = "restarting"
)

// Engine provides access to the engine of an agent.
type Engine interface {
	// Probe checks that the engine is alive and returns its models and other facts. The
	// error is vllm.ErrRefused if the port refuses connections.
	Probe(ctx context.Context) (instance.Facts, error)
	// Load reads the metrics of the engine.
	Load(ctx context.Context) (vllm.Stats, error)
}

// firstBackoff is the first pause between two probes of an engine that has not answered
// yet; each further pause is twice as long.
const firstBackoff = 500 * time.Millisecond

// MaxBackoff is the longest pause between two probes of an engine that has not
// answered yet.
const MaxBackoff = 5 * time.Second

// Agent maintains the registration of one engine. Create it with New and call Run once.
type Agent struct {
	engine    Engine
	registrar Registrar
	o         Options
	hurry     chan struct{} // closed to skip the wait of a drain
	hurryOnce sync.Once
	ticks     func(time.Duration) (<-chan time.Time, func())

	// The following fields are used by the goroutine of Run only.
	up          bool // the state of the record is ready or starting
	tally       tally
	backoff     time.Duration
	incarnation incarnation
	reread      bool // a probe has failed because the metrics could not be read; see probe
	load        loadWatch
	lastLogged  string // last reason logged
	lastModels  int    // number of models that the engine listed
	ranks       ranks

	mu     sync.Mutex // guards status; only the goroutine of Run writes Record, so it reads Record without mu
	status Status     // its Phase is Probing until Run ends; the method Status derives the other phases
}

// New makes an agent; nothing happens before Run.
func New(engine Engine, registrar Registrar, o Options) *Agent {
	o.fill()
	return &Agent{
		engine: engine, registrar: registrar, o: o,
		hurry:       make(chan struct{}),
		ticks:       newTicks,
		incarnation: incarnation{host: o.Base.HostID, key: o.Key},
		tally:       tally{period: max(o.ProbeTimeout, o.ProbeInterval), slowAfter: o.SlowAfter},
		status:      Status{Phase: Probing},
	}
}

// Run probes and registers the engine. When ctx ends, it drains and returns. It also returns
// when the engine's process has exited. The error is that of the final revoke; if that fails,
// the key is deleted when its lease expires.
func (a *Agent) Run(ctx context.Context) error {
	a.serve(ctx)
	err := a.leave(context.WithoutCancel(ctx))
	a.update(func(s *Status) { s.Phase = Gone; s.Registered = false })
	return err
}

// Hurry makes the current or a later drain skip its wait.
func (a *Agent) Hurry() { a.hurryOnce.Do(func() { close(a.hurry) }) }

// serve probes until ctx ends or the engine's process exits; either also cancels a hung probe.
// The delay counts from the start of the last probe, so that a hung engine does not stretch
// the period.
func (a *Agent) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancelOnClose(ctx, cancel, a.o.Exited, nil)()
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
		if ctx.Err() != nil || closed(a.o.Exited) {
			return // an interrupted probe does not count
		}
		delay := a.judge(facts, err)
		timer.Reset(max(0, delay-time.Since(start)))
	}
}

// probe probes the engine once and reads its metrics, which are optional. But the incarnation depends
// on the start time in the metrics: while it is unknown, the first failure to read them fails the probe.
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
	stats, err := a.engine.Load(pctx)
	_, answered := errors.AsType[*vllm.StatusError](err)
	switch {
	case err == nil:
		a.load.see(stats, time.Now())
		stats.AddTo(&facts)
	case a.incarnation.id == "" && !a.reread && !answered:
		a.reread = true
		return instance.Facts{}, err
	}
	if a.o.EngineIDs != nil {
		a.ranks.query(pctx, a.o.EngineIDs, a.incarnation.isNew(facts.StartedAt))
	}
	return facts, nil
}

// judge advances the state machine by one probe and returns the delay until the next.
func (a *Agent) judge(facts instance.Facts, err error) time.Duration {
	if errors.Is(err, vllm.ErrRefused) {
		a.incarnation.refused()
	}
	switch {
	case err == nil:
		a.probeSucceeded(facts)
		return a.o.ProbeInterval
	case !a.hasRecord(): // probing
		a.logReason(err, "not registered: ")
		a.backoff = min(max(2*a.backoff, firstBackoff), MaxBackoff)
		return a.backoff
	case errors.Is(err, vllm.ErrNotSent), errors.Is(err, errStarved):
		a.logReason(err, "probe not sent: ")
		return a.o.ProbeInterval
	default:
		a.probeFailed(err)
		if a.up && errors.Is(err, vllm.ErrRefused) {
			return min(a.o.ProbeInterval, firstBackoff) // refusals come at once: confirm them quickly
		}
		return a.o.ProbeInterval
	}
}

func (a *Agent) probeSucceeded(facts instance.Facts) {
	if sure := a.tally.recordSuccess(); a.hasRecord() && !a.up && !sure {
		return
	}
	fresh := a.incarnation.observe(facts.StartedAt)
	rec := a.record(facts)
	log := a.o.Log.WithFields(logrus.Fields{"incarnation": rec.ID, "models": printable(rec.Models)})
	switch {
	case !a.hasRecord():
		log.Info("engine answers: registering")
	case !a.up:
		log.Info("engine answers again: ready")
	case fresh:
		log.Warn("engine was restarted: new incarnation")
	}
	if a.ranks.err != nil {
		a.logReason(a.ranks.err, "engine answers, but is not ready: ")
	} else if a.status.Record.State == instance.Starting {
		log.WithField("engine_ids", rec.EngineIDs).Info("bootstrap server answers: ready")
	}
	logWarnings(log, a.status.Record, rec)
	if n := len(facts.Models); len(rec.Models) < n && n != a.lastModels {
		log.Infof("record holds %d of %d models; proxies read the others from the engine", len(rec.Models), n)
	}
	a.up, a.lastModels = true, len(facts.Models)
	if a.ranks.err == nil {
		a.lastLogged = ""
	}
	a.put(rec)
}

func (a *Agent) probeFailed(err error) {
	cause, down := a.tally.recordFailure(err)
	dead := down && cause == "" // not merely slow
	switch {
	case !a.up && !(dead && a.status.Record.Cause == instance.CauseSlow):
		a.logReason(err, "engine stays down: ")
		return
	case !down && cause == "":
		a.o.Log.WithError(err).WithField("failed", a.tally.failures).Warn("probe failed")
		return
	case !down:
		a.o.Log.WithError(err).WithField("unanswered", a.tally.timeouts).Warn("probe not answered")
		return
	case dead:
		cause = causeOf(err)
		a.logReason(err, "engine is down: ")
	default:
		a.logReason(err, "engine is slow: ")
	}
	a.up = false
	a.putState(instance.Down, cause)
}

// causeOf returns the cause of failed probes for the record, "" for other errors.
func causeOf(err error) string {
	if _, ok := errors.AsType[*WrongModelError](err); ok {
		return "wrong model"
	}
	if status, ok := errors.AsType[*vllm.StatusError](err); ok {
		return "HTTP " + strconv.Itoa(status.Code)
	}
	for _, known := range []error{vllm.ErrRefused, vllm.ErrClosed, vllm.ErrTLS, vllm.ErrNotVLLM, vllm.ErrProxy, vllm.ErrNoModels} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return ""
}

// logReason logs why the engine does not serve, once per reason.
func (a *Agent) logReason(err error, prefix string) {
	text := err.Error()
	a.update(func(s *Status) { s.Reason = text })
	if text == a.lastLogged {
		a.o.Log.Debug(prefix + text)
		return
	}
	a.lastLogged = text
	a.o.Log.Warn(prefix + text)
}

// Options of an Agent. Key and Log are required; zero durations take the defaults.
type Options struct {
	// Key of the instance; role instance.Both for an engine in both roles.
	Key         instance.Key
	Model       string // expected model; "" accepts any
	StrictModel bool   // the whole name must match, not only its last path component
	// Base is the record from the settings: connector, labels, host_id, agent, scheme. The
	// facts of the engine are added to it.
	Base          instance.Record
	ProbeInterval time.Duration // default 2 s
	ProbeTimeout  time.Duration // limit of one probe, excluding time without CPU (see allow); default 5 s
	// SlowAfter is how long probes, at least three in a row, must be unanswered until the
	// engine is "down" because it is slow; default 15 s.
	SlowAfter    time.Duration
	DrainTimeout time.Duration // default 120 s
	// ShutdownDelay returns the minimum duration of a drain, so that all proxies notice it;
	// DrainTimeout begins after it. It is called when the drain begins. nil means 0.
	ShutdownDelay func() time.Duration
	// KVLease is how long a prefill instance keeps the blocks of a finished prefill for decode
	// to pull; a drain waits for it. Default 30 s; negative means none.
	KVLease time.Duration
	// EngineIDs queries the bootstrap server of a Mooncake prefill engine for its engine ids by
	// rank. It is called after each start of the engine until it succeeds; until then the
	// instance is "starting", because decode cannot fetch from it. Nil for other engines.
	EngineIDs func(ctx context.Context) (map[string]string, error)
	// Exited is closed when the engine's process has exited; nil if the agent did not start
	// it. The agent then writes "down", revokes the registration and ends; the next process
	// gets another agent.
	Exited <-chan struct{}
	Log    logrus.FieldLogger
}

// Default values of Options.
const (
	DefaultProbeInterval = 2 * time.Second
	DefaultProbeTimeout  = 5 * time.Second
	DefaultSlowAfter     = 15 * time.Second
	DefaultDrainTimeout  = 120 * time.Second
	DefaultKVLease       = 30 * time.Second
)

func (o *Options) fill() {
	o.ProbeInterval = cmp.Or(o.ProbeInterval, DefaultProbeInterval)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, DefaultProbeTimeout)
	o.SlowAfter = cmp.Or(o.SlowAfter, DefaultSlowAfter)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, DefaultDrainTimeout)
	o.KVLease = cmp.Or(o.KVLease, DefaultKVLease)
}
