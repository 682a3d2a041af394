package health

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Prober probes one instance; nil means alive. ErrNotSent means that the
// probe was not sent, ErrNoAnswer that no answer came in time. Any other error is a
// refusal, or an answer that is an error.
type Prober interface {
	Alive(ctx context.Context, in *instance.Instance) error
}

// ErrNotSent is wrapped by errors of a Prober whose cause is in this proxy, so that they are no
// evidence about the instance.
var ErrNotSent = errors.New("not asked")

// ErrNoAnswer is wrapped by errors of a Prober that got no answer in time: the instance is silent
// or slow.
var ErrNoAnswer = errors.New("no answer")

// Options configure a Tracker; the zero values of numbers mean the defaults named.
type Options struct {
	Source instance.Source
	Prober Prober
	Log    logrus.FieldLogger

	// MaxFailures is the number of strikes in a row that ejects an instance, default 3.
	MaxFailures int
	// Ejection is the duration of the first soft ejection, and of the first ejection that only a
	// trial ends; default 1 s. Each further ejection soon after, and each failed trial, doubles it
	// up to MaxEjection, default 30 s.
	Ejection, MaxEjection time.Duration
	// ProbeInterval is the pause between the probes of an ejected instance,
	// default 250 ms at first, growing to 2 s.
	ProbeInterval, MaxProbeInterval time.Duration
	// ProbeTimeout bounds one probe, default 5 s.
	ProbeTimeout time.Duration
	// SilenceLimit is how long an instance that keeps requests waiting may be silent while others
	// respond, default 1.25 s. It grows if instances answer slowly.
	SilenceLimit time.Duration
	// Received returns the number of reads in which legs received bytes of answers from an engine,
	// in both roles; nil: always 0.
	Received func(instance.Key) uint64
	// Read reads the metrics of an engine and calls Observe; nil: hung cores are not detected.
	Read func(context.Context, *instance.Instance)
	// Trial sends a request of one token without transfer params to an engine, to each of its
	// data-parallel ranks. Its errors may wrap ErrRefused, ErrNoAnswer and ErrNotSent. nil: hung
	// cores are not detected, and probes alone readmit instances.
	Trial func(context.Context, *instance.Instance) error
	// OnTrial is called with the result of each trial that was sent, one of TrialResults. It must
	// not block.
	OnTrial func(result string)
	// Suspended returns instance.Sleeping or instance.Paused for an engine in that state, else "".
	// Its errors may wrap ErrNoRoute. nil: engines are never queried.
	Suspended func(context.Context, *instance.Instance) (instance.View, error)
	// WaitingTokens returns how many prompt tokens an instance has to compute for the legs of
	// all proxies; nil: 0.
	WaitingTokens func(instance.Key) int64
	// PrefillOptional reports whether decode instances do the work of prefill instances
	// when there are none.
	PrefillOptional bool
	// SlowStart is how long a readmitted instance takes to get its full share,
	// default 10 s; negative: at once.
	SlowStart time.Duration
	// OnEject is called after an ejection, on a goroutine of the Tracker. dead reports that
	// requests that wait for the instance can get no answer any more.
	OnEject func(k instance.Key, dead bool, reason string)
}

func (o *Options) setDefaults() {
	o.Ejection = cmp.Or(o.Ejection, time.Second)
	o.MaxEjection = cmp.Or(o.MaxEjection, 30*time.Second)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 250*time.Millisecond)
	o.MaxProbeInterval = cmp.Or(o.MaxProbeInterval, 2*time.Second)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 5*time.Second)
	o.SilenceLimit = cmp.Or(o.SilenceLimit, 1250*time.Millisecond)
	o.SlowStart = cmp.Or(o.SlowStart, 10*time.Second)
	o.MaxFailures = cmp.Or(o.MaxFailures, 3)
	if o.Received == nil {
		o.Received = func(instance.Key) uint64 { return 0 }
	}
	if o.OnTrial == nil {
		o.OnTrial = func(string) {}
	}
	if o.WaitingTokens == nil {
		o.WaitingTokens = func(instance.Key) int64 { return 0 }
	}
	if o.OnEject == nil {
		o.OnEject = func(instance.Key, bool, string) {}
	}
}
