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
	return stale(b.watcher.Status(), b.load.Others != nil, b.load.Metrics())
}

func stale(s watch.Status, digests bool, d metrics.Digests) string {
	switch {
	case s.State != watch.Live:
		return "etcd does not answer"
	case len(s.Kept) > 0: // they may include a role change that etcd lacks: SetRole would not lift it
		return "etcd was replaced, and keys are kept"
	case !digests:
		return "load digests are off"
	case d.Old > 0 || d.Ignored > 0:
		return "a load digest is old, or of a newer release"
	}
	return ""
}
