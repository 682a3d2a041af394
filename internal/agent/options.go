package agent

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Options of an Agent. Key and Log are required; zero durations take the defaults.
type Options struct {
	// Key of the instance, of role instance.Both for an engine that is in either.
	Key         instance.Key
	Model       string // expected model; "" accepts any
	StrictModel bool   // the last path component is not enough
	// Base is what the flags say about the instance: connector, labels, host_id,
	// agent, scheme. Facts of the engine are added to it.
	Base          instance.Record
	ProbeInterval time.Duration // default 2 s
	ProbeTimeout  time.Duration // of one probe, in time that this process runs; default 5 s
	// SlowAfter is how long at least the engine leaves probes unanswered, three in a
	// row or more, before it is "down" for being slow. Default 15 s.
	SlowAfter    time.Duration
	DrainTimeout time.Duration // default 120 s
	// ShutdownDelay returns how long a drain lasts at least, so that all proxies learn of
	// it; DrainTimeout begins after it. It is called when the drain begins. nil means 0.
	ShutdownDelay func() time.Duration
	// KVLease is how long an instance that prefills pins the blocks of a finished
	// prefill for decode to pull; a drain waits it out. Default 30 s, negative none.
	KVLease time.Duration
	// EngineIDs asks a Mooncake prefill engine's bootstrap server for its engine ids
	// by rank. It is asked in each life of the engine until it answers, and the
	// instance is "starting" as long: without them no decode can fetch from it. Nil
	// for all other engines.
	EngineIDs func(ctx context.Context) (map[string]string, error)
	// Exited is closed when the engine's process is known to be gone, by whatever
	// has started it; nil when nobody has. The agent then says "down", takes the
	// registration back at once and ends: the next life has an agent of its own.
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
	if o.ProbeInterval <= 0 {
		o.ProbeInterval = DefaultProbeInterval
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = DefaultProbeTimeout
	}
	if o.SlowAfter <= 0 {
		o.SlowAfter = DefaultSlowAfter
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	if o.KVLease == 0 {
		o.KVLease = DefaultKVLease
	}
}
