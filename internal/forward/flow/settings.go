package flow

import (
	"cmp"
	"context"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/catalog"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/retrybudget"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// Picker chooses instances; see sched.Scheduler.
type Picker interface {
	Pick(r sched.Request) (*sched.Assignment, error)
	// Explain reports what Pick would do, and changes nothing.
	Explain(r sched.Request) *sched.Explained
	// Take returns an assignment of one instance.
	Take(in *instance.Instance) (*sched.Assignment, error)
	Members() *instance.Snapshot
	// Removed returns why the instance of a pick can send nothing more, nil if it can.
	Removed(a *sched.Assignment) error
	InFlight(k instance.Key) int64
	// CanServe reports whether an instance with these labels that can be used now serves the model.
	CanServe(model string, labels instance.Selector) bool
	// Lists reports whether any instance lists the model.
	Lists(model string) bool
	// Models are the names of all models that instances list, in order.
	Models() []string
}

// Health receives what requests learn about instances.
type Health interface {
	// Eject takes out an instance that refuses connections.
	Eject(in *instance.Instance, reason string)
	// Strike counts that it failed a request for a model which another instance then served. timedOut
	// reports that one of the proxy's time limits ended the leg.
	Strike(in *instance.Instance, model, reason string, timedOut bool)
	// Success counts that it served a request for a model. It is called for every leg, so it must be
	// free while no instance is in trouble.
	Success(in *instance.Instance, model string)
	// Available reports whether it is not ejected.
	Available(k instance.Key) bool
}

// Notifications receives the messages that prefill instances send in addition to their
// answers, for the flow notified. It is safe for concurrent use.
type Notifications interface {
	// CannotHear reports why notifications of an instance cannot be received, nil if they can.
	CannotHear(in *instance.Instance) error
	// Address returns where an instance should send its notifications, for operators.
	Address(in *instance.Instance) string
	// Await blocks until the given number of ranks of an instance has notified that the KV cache of
	// the attempt with this id has arrived. It may be called before or after they have;
	// once it has returned nil the notifications are forgotten.
	Await(ctx context.Context, in *instance.Instance, id string, ranks int) error
}

// Recorder receives the events of requests. It must not block.
type Recorder interface {
	// Retried counts a leg of this role that failed in this way and is tried again.
	Retried(role instance.Role, class leg.Class)
	// Failed counts a leg to an instance that failed in this way.
	Failed(k instance.Key, class leg.Class)
	// Handed counts an answer of a prefill instance whose connector puts transfer params
	// into it; something reports whether there were any.
	Handed(in *instance.Instance, something bool)
	// TransferSpent counts a decode leg that failed in this way after it may have taken
	// a KV transfer that can be used once. Prefill holds its blocks until their lease ends.
	TransferSpent(class leg.Class)
	// Media counts a request with images, video or sound.
	Media()
	// Disaggregated counts a decision whether a request goes through prefill. stall is
	// the estimated time that all streams of the decode instance together wait for a prompt
	// that it computes itself, in seconds.
	Disaggregated(decodeOnly bool, reason string, stall float64)
	// Asked counts an invalid request by its outcome: AskRefused and so on.
	Asked(outcome string)
	// Continued counts a stream that goes on after a leg failed in this way; how is one of
	// continuation.Hows, and pause the time from the failure to the next event.
	Continued(class leg.Class, how string, pause time.Duration)
	// NotContinued counts a stream that was lost, by one of continuation.Reasons.
	NotContinued(reason string)
}

// Config has the settings that the creator of a forward.Handler chooses. The defaults named are
// those of forward.New, for zero durations and counts.
type Config struct {
	Picker Picker
	// AwaitMembership blocks until instances may be picked, or ctx ends. nil means always.
	AwaitMembership func(ctx context.Context)
	// ReceivedFrom returns the earliest time, from since on, at which an answer may have arrived
	// that is read now: this process may have been suspended. nil means now.
	ReceivedFrom  func(since, now time.Time) time.Time
	Health        Health
	Notifications Notifications // of prefill instances; nil: none whose connector notifies can be used
	// Models reads the model lists of engines again; nil: they are not read again.
	Models *catalog.Catalog
	Log    logrus.FieldLogger
	// Fallback lets a decode instance compute the prompt when no prefill
	// instance is left.
	Fallback bool
	// Disaggregate decides which requests go through prefill and decode; nil: all.
	Disaggregate *Disaggregate
	// Queue admits completions; nil: all at once.
	Queue *admission.Queues
	// Estimator learns how long the stages of requests take; nil: only what Disaggregate needs
	// is measured.
	Estimator   *estimate.Estimator
	MaxAttempts int           // failures per request that count (leg.Rule.Free), default 4
	Prefill     time.Duration // for a whole prefill, default 300 s
	FirstByte   time.Duration // until decode answers, default 60 s
	Idle        time.Duration // between two reads of an answer, default 120 s
	NonStream   time.Duration // for a non-streamed answer to begin, default 1 h
	KVBudget    time.Duration // how long a KV transfer may wait whose lease is not known, default 20 s
	// RewriteHost puts the host by which prefill was reached into its transfer params.
	RewriteHost bool
	Notified    time.Duration // from a prefill's answer to the last of its notifications, default 30 s
	// ContinueStreams is how many times a stream may go on after its leg was lost; 0: streams are
	// not continued.
	ContinueStreams int
}

// Settings are the same for all requests.
type Settings struct {
	Config
	Recorder Recorder
	Budget   *retrybudget.Budget
	// Memory bounds the token ids of streams that may go on; nil: no bound.
	Memory *scratch.Bodies

	pace       continuation.Pace
	dialects   map[string]connector.Dialect
	questions  *semaphore.Weighted // of maxAsking
	unnotified unnotified
}

// Unnotified returns the prefill instances that are bypassed because their notifications do
// not arrive, with the addresses at which they are expected.
func (s *Settings) Unnotified() map[instance.Key]string { return s.unnotified.list(s.Picker.Members()) }

// needsPrefill reports whether a decode instance must not serve decode-only requests.
func (s *Settings) needsPrefill(a *sched.Assignment) bool {
	d := s.dialects[a.Connector]
	return d != nil && d.NeedsPrefill()
}

// LoadDialects prepares the settings for requests. It fails for a dialect whose flow does not
// exist.
func (s *Settings) LoadDialects() error {
	s.dialects = map[string]connector.Dialect{}
	s.unnotified.log = s.Log
	s.questions = semaphore.NewWeighted(maxAsking)
	for _, name := range connector.Names() {
		d, err := connector.New(name)
		if err != nil {
			return err
		}
		s.dialects[name] = d
	}
	return nil
}

// transferBudget returns how long a KV transfer may wait for decode: two thirds of its lease, since
// decode needs some time to extend that, or KVBudget where the lease is not known.
func (s *Settings) transferBudget(lease time.Duration) leg.Limit {
	if lease > 0 {
		return leg.Limit{After: lease / 3 * 2, Class: leg.TransferExpired, Setting: "two thirds of the KV lease of the prefill instance"}
	}
	return leg.Limit{After: s.KVBudget, Class: leg.TransferExpired, Setting: "--kv-lease-budget"}
}

// receivedFrom returns ReceivedFrom for an answer that was just read.
func (s *Settings) receivedFrom(since time.Time) time.Time {
	if s.ReceivedFrom == nil {
		return time.Now()
	}
	return s.ReceivedFrom(since, time.Now())
}

// heldUntil returns the time until which a prefill instance holds the KV cache that it has
// just computed.
func (s *Settings) heldUntil(p *sched.Assignment, d connector.Dialect) time.Time {
	return time.Now().Add(cmp.Or(d.Terms(p.Instance).Lease, s.KVBudget))
}
