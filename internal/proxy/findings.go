package proxy

import (
	"context"
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/notice"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
)

// maxUnverified bounds the instances in a presence. With more of them it has none.
const maxUnverified = 64

// unverified are the instances that did not answer to this proxy, with the reason. They
// are part of its presence in etcd, because only this proxy knows it.
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

// notices returns what an operator has to look at, as /status shows it.
func (p *app) notices() []string {
	return slices.Concat(p.secure.Findings(), p.etcd.Findings(), p.keyFindings(), notice.View{
		Snapshot: p.watcher.Snapshot(), Available: p.tracker.Available, View: p.tracker.View, Why: opinion{p.tracker}.Why, Connector: engines.Dialects(p.cfg.Connector), Counts: p.noticed,
		Deaf: p.unfollowed(), Blocks: engines.Blocks(p.cfg.Connector), Unnotified: p.handler.Unnotified(),
	}.Words())
}

// logWarnings logs once in each life of an instance what is not as it should be.
func (p *app) logWarnings(ctx context.Context) {
	var last *instance.Snapshot
	for {
		snap := p.watcher.Snapshot()
		instance.Changes(last, snap, func(was, is *instance.Instance) {
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
		})
		last = snap
		select {
		case <-ctx.Done():
			return
		case <-snap.Changed():
		}
	}
}
