package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

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
