package proxy

import (
	"fmt"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
)

// maxUnverified bounds the unverified instances in a presence; with more, the presence lists none.
const maxUnverified = 64

// unverified returns the instances that did not answer this proxy, each with the reason. They
// are part of its presence in etcd, because only this proxy knows them.
func unverified(snap *instance.Snapshot) map[string]string {
	out := make(map[string]string)
	for _, in := range snap.All() {
		if in.View == instance.Pending || in.Verified {
			continue
		}
		if len(out) == maxUnverified {
			return nil
		}
		out[in.Key.String()] = instance.Printable(in.Reason, 120)
	}
	return out
}

// opinion returns this proxy's view of an instance, which is not in the record. Display, /readyz and
// pdctl read the state of package health only through it.
func (p *app) opinion(k instance.Key) instance.Opinion {
	if !p.tracker.Trouble() {
		return instance.Opinion{}
	}
	switch v := p.tracker.View(k); v {
	case instance.Sleeping:
		return instance.Opinion{View: v, Reason: "the engine sleeps: it gets no requests until POST /wake_up"}
	case instance.Paused:
		return instance.Opinion{View: v, Reason: "the engine is paused: it gets no requests until POST /resume"}
	}
	if reason, ok := p.tracker.Ejected(k); ok {
		return instance.Opinion{View: instance.Ejected, Reason: instance.Printable(reason, maxReason), Reachable: !p.tracker.Unreachable(k)}
	}
	if d := p.tracker.SilentFor(k); d >= minSilence {
		return instance.Opinion{Reason: fmt.Sprintf("no response for %s, and no other instance can take its requests: they wait within their own limits", d.Round(time.Second))}
	}
	if models := p.tracker.FailingModels(k); len(models) > 0 {
		slices.Sort(models)
		return instance.Opinion{Reason: instance.Printable("ejected for "+instance.Some(models)+", whose requests fail here", maxReason)}
	}
	return instance.Opinion{}
}

const (
	// minSilence is the time without a response after which an instance that may be picked is shown as silent.
	minSilence = 3 * time.Second
	maxReason  = 300 // bytes
)

// view returns the inputs for the readiness and the notices of this proxy.
func (p *app) view() notice.View {
	return notice.View{
		Snapshot: p.watcher.Snapshot(), Opinion: p.opinion, Fallback: p.cfg.Fallback == config.FallbackDecode,
		PairKey: engines.PairKeys(p.cfg),
	}
}

// notices returns the problems that /status shows, in sentences.
func (p *app) notices() []string {
	v, membership := p.view(), p.watcher.Status()
	v.Counts, v.NoKVEvents, v.Unnotified, v.Kept, v.Unsaved = p.noticed, p.unfollowed(), p.handler.Unnotified(), len(membership.Kept), membership.Unsaved
	return slices.Concat(p.secure.Findings(), p.etcd.Findings(), p.keyFindings(), p.routeFindings(), v.Texts())
}

// notServing returns why no request can be served, "" if some can be.
func (p *app) notServing() string { return p.view().NotServing() }

// readiness reports whether /readyz succeeds. known is false while the proxy stops, which is not a
// problem of the fleet.
func (p *app) readiness() (ready, known bool) {
	return p.ready() == nil && p.notServing() == "", !p.stopping.Load()
}

// report returns this proxy's report about the fleet, for its presence.
func (p *app) report() lease.Report {
	snap := p.watcher.Snapshot()
	instances, leftOut := lease.NewInstanceReports(snap, p.opinion)
	return lease.Report{
		Unverified: unverified(snap), Instances: instances, LeftOut: leftOut,
		NotServing: p.notServing(), Notices: p.notices(), Kept: lease.KeptKeys(p.watcher.Status().Kept),
	}
}

// logWarning logs the warning about an instance when its text changes.
func (p *app) logWarning(was, is *instance.Instance) {
	if is == nil || is.View == instance.Pending {
		return
	}
	text, before := is.Warning(p.cfg.Connector), ""
	if was != nil {
		before = was.Warning(p.cfg.Connector)
	}
	if text != "" && text != before {
		p.log.WithField(logging.FieldInstance, is.Key.String()).Warn(text)
	}
}
