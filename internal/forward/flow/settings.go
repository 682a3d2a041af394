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
	// Removed returns why the instance of a pick cannot answer any more, nil if it can.
	Removed(a *sched.Assignment) error
	InFlight(k instance.Key) int64
	// CanServe reports whether a usable instance with these labels serves the model.
	CanServe(model string, labels instance.Selector) bool
	// Lists reports whether any instance lists the model.
	Lists(model string) bool
	// Models are the names of all models that instances list, in order.
	Models() []string
}

// Health receives the findings of requests about instances.
type Health interface {
	// Eject ejects an instance that refuses connections.
	Eject(in *instance.Instance, reason string)
	// Strike records that an instance failed a request for a model, which another instance
	// then served. timedOut reports whether one of the proxy's time limits ended the leg.
	Strike(in *instance.Instance, model, reason string, timedOut bool)
	// Success records that an instance served a request for a model. It is called for every
	// leg, so it must use almost no CPU while all instances are healthy.
	Success(in *instance.Instance, model string)
	// Available reports whether an instance is not ejected.
	Available(k instance.Key) bool
}

// Notifications receives the messages that prefill instances send in addition to their
// answers, for the flow notified. It is safe for concurrent use.
type Notifications interface {
	// CannotReceive reports why notifications of an instance cannot be received, nil if they can.
	CannotReceive(in *instance.Instance) error
	// Address returns the address to which an instance should send its notifications, for operators.
	Address(in *instance.Instance) string
	// Await blocks until the given number of ranks of an instance has reported that the KV
	// cache of the attempt id has arrived. It may be called before or after that; when it
	// returns nil, the notifications are forgotten.
	Await(ctx context.Context, in *instance.Instance, id string, ranks int) error
}

// Recorder receives the events of requests. It must not block.
type Recorder interface {
	// Retried counts a leg of this role that failed with this class and is retried.
	Retried(role instance.Role, class leg.Class)
	// Failed counts a leg to an instance that failed with this class.
	Failed(k instance.Key, class leg.Class)
	// Handed counts an answer of a prefill instance whose connector adds transfer params to
	// it; something reports whether there were any.
	Handed(in *instance.Instance, something bool)
	// TransferSpent counts a decode leg that failed with this class after it may have taken a
	// single-use KV transfer. Prefill holds its blocks until their lease ends.
	TransferSpent(class leg.Class)
	// Media counts a request with images, video or sound.
	Media()
	// Disaggregated counts a decision whether a request goes through prefill. stall is
	// the estimated time that all streams of the decode instance together wait for a prompt
	// that it computes itself, in seconds.
	Disaggregated(decodeOnly bool, reason string, stall float64)
	// Asked counts an invalid request by its outcome: AskRefused and so on.
	Asked(outcome string)
	// Continued counts a stream that was continued after a leg failed with this class. how is
	// one of continuation.Hows, pause the time from the failure to the next event.
	Continued(class leg.Class, how string, pause time.Duration)
	// NotContinued counts a lost stream; reason is one of continuation.Reasons.
	NotContinued(reason string)
}

// Config has the settings that the creator of a forward.Handler chooses. The defaults named are
// those of forward.New, for zero durations and counts.
type Config struct {
	Picker Picker
	// AwaitMembership blocks until instances may be picked, or ctx ends; nil: no wait.
	AwaitMembership func(ctx context.Context)
	// ReceivedFrom returns the earliest time after since at which an answer that is read now
	// may have arrived: this process may have been suspended. nil: now.
	ReceivedFrom  func(since, now time.Time) time.Time
	Health        Health
	Notifications Notifications // of prefill instances; nil excludes those whose connector notifies
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
	// Estimator learns the durations of the stages of requests; nil: only if Disaggregate is set.
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
	// ContinueStreams is the maximum number of times that a stream is continued after its leg
	// was lost; 0: none.
	ContinueStreams int
}

// Settings are the same for all requests.
type Settings struct {
	Config
	Recorder Recorder
	Budget   *retrybudget.Budget
	// Memory bounds the token ids of streams that may be continued; nil: no bound.
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

// LoadDialects prepares the settings for requests. It fails if a dialect cannot be created.
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

// transferBudget returns how long a KV transfer may wait for decode. It is two thirds of the
// lease, because decode needs some time to extend it, or KVBudget if the lease is not known.
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
