package flow

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/budget"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// Picker chooses instances; see sched.Scheduler.
type Picker interface {
	Pick(r sched.Request) (*sched.Assignment, error)
	// Explain tells what Pick would do, and changes nothing.
	Explain(r sched.Request) *sched.Explained
	// Take gives an assignment of one instance.
	Take(in *instance.Instance) (*sched.Assignment, error)
	Members() *instance.Snapshot
	// Gone tells why nothing more can come from the instance of a pick, nil if
	// something can.
	Gone(a *sched.Assignment) error
	InFlight(k instance.Key) int64
	// Models are the names of all models that instances list, in order.
	Models() []string
}

// Health hears what requests learn about instances.
type Health interface {
	// Eject: nobody can connect to it.
	Eject(in *instance.Instance, reason string)
	// Strike: it failed a request that another instance then served.
	Strike(in *instance.Instance, reason string)
	// Success: it served. Called for every leg, so it must cost nothing while
	// nobody is in trouble.
	Success(in *instance.Instance)
	// Available tells whether it is in.
	Available(k instance.Key) bool
}

// Notifications hears what prefill instances say beside their answers, for the flow Notified.
// Its methods may be called at once.
type Notifications interface {
	// CannotHear tells why an instance cannot be heard, nil if it can.
	CannotHear(in *instance.Instance) error
	// Await returns when so many ranks of an instance have said that the KV cache of
	// the attempt with this id has arrived. It may be called before or after they do;
	// once it has returned nil they are forgotten.
	Await(ctx context.Context, in *instance.Instance, id string, ranks int) error
}

// Recorder hears of the events on a request's way. It must not block.
type Recorder interface {
	// Retried: a leg in this role failed in this way and was tried again.
	Retried(role instance.Role, class leg.Class)
	// Handed: a prefill instance whose connector hands something over in its answer has
	// answered, with it or without.
	Handed(in *instance.Instance, something bool)
	// HandoverSpent: a decode leg failed in this way after it may have taken a
	// hand-over that can be used once. Prefill holds its blocks until their lease ends.
	HandoverSpent(class leg.Class)
	// Media: a request with images, video or sound, which goes the ordinary way.
	Media()
	// Disaggregated: it was decided whether a request goes through prefill. stall is how
	// many seconds all streams of the decode instance together wait for a prompt that it
	// computes alone, by the estimate.
	Disaggregated(alone bool, reason string, stall float64)
	// Asked: what became of an invalid request, one of AskRefused and so on.
	Asked(outcome string)
}

// Settings are the same for all requests.
type Settings struct {
	Picker        Picker
	Health        Health
	Notifications Notifications // nil: nobody can be heard
	Recorder      Recorder
	Budget        *budget.Budget
	Log           logrus.FieldLogger
	// Fallback lets a decode instance compute the prompt when no prefill
	// instance is left.
	Fallback bool
	// Disaggregate decides who goes through prefill and decode; nil: everybody.
	Disaggregate *Disaggregate
	MaxAttempts  int           // counted failures per request
	Prefill      time.Duration // for a whole prefill
	FirstByte    time.Duration // until decode answers
	Idle         time.Duration // between two reads of an answer
	NonStream    time.Duration // for a non-streamed answer to begin
	KVBudget     time.Duration // how long a hand-over may wait whose lease is not known
	// RewriteHost puts the host by which prefill was reached into what it hands over.
	RewriteHost bool
	Notified    time.Duration // from a prefill's answer to the last of its notifications

	dialects  map[string]connector.Dialect
	questions questions
}

// needsPrefill tells of a decode instance that may not be sent a request alone.
func (s *Settings) needsPrefill(a *sched.Assignment) bool {
	d := s.dialects[a.Connector]
	return d != nil && d.NeedsPrefill()
}

// LoadDialects fills in the dialects. The error tells of one whose flow is not built.
func (s *Settings) LoadDialects() error {
	s.dialects = map[string]connector.Dialect{}
	for _, name := range connector.Names() {
		d, err := connector.New(name)
		if err != nil {
			return err
		}
		switch d.Flow() {
		case connector.Sequential, connector.Concurrent, connector.Notified:
		case connector.DecodeFirst:
			return fmt.Errorf("connector %s: there is no flow %s", name, d.Flow())
		}
		s.dialects[name] = d
	}
	return nil
}

// handoverBudget is how long a hand-over may wait. A lease that is known allows two thirds of
// it, since decode needs some time to extend it; else what is configured counts.
func (s *Settings) handoverBudget(lease time.Duration) time.Duration {
	if lease > 0 {
		return lease / 3 * 2
	}
	return s.KVBudget
}

// heldUntil is until when a prefill instance keeps what it has just computed.
func (s *Settings) heldUntil(p *sched.Assignment, d connector.Dialect) time.Time {
	if lease := d.Terms(p.Instance).Lease; lease > 0 {
		return time.Now().Add(lease)
	}
	return time.Now().Add(s.KVBudget)
}
