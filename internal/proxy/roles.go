package proxy

import (
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/proxy/ratio"
	"github.com/pdmesh/pdmesh/internal/sched/roles"
)

// makeRatio makes the advice about roles, and its metrics.
func (b *builder) makeRatio() {
	b.ratio = ratio.New(ratio.Options{
		Mode: b.cfg.AutoRoles, Targets: roles.Targets{TTFT: b.cfg.TTFTTarget.Seconds(), TPOT: b.cfg.TPOTTarget.Seconds()},
		Snapshot: b.watcher.Snapshot, Load: b.sched.Loads.Total, Rates: b.estimator.Rates, Queues: b.queues.Status, Elsewhere: b.queues.Elsewhere,
		Intents: b.store.Intents, Stale: b.stale, View: b.tracker.View, Fits: engines.Usable(b.cfg.Connector), Log: b.log.WithField("component", "roles"),
	})
	metrics.Roles{Advice: b.ratio.Advice, Moves: b.ratio.Moves, Limit: b.cfg.MetricsModels}.Register(b.registry)
}

// stale returns why the membership or the load of the other proxies may be out of date, "" if it is
// up to date.
func (b *builder) stale() string {
	switch {
	case b.watcher.Status().State != watch.Live:
		return "etcd does not answer"
	case b.load.Others == nil:
		return "load digests are off"
	case b.load.Metrics().Old > 0 || b.load.Metrics().Ignored > 0:
		return "a load digest is old, or of a newer release"
	}
	return ""
}
