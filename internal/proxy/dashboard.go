package proxy

import (
	"context"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/dashboard"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// newBoard makes the dashboard. It is nil with --dashboard off. list returns an instance as
// in /status.
func (p *app) newBoard(list func(*instance.Instance) instance.Listing, etcd func() httpapi.EtcdStatus, requests func() int64, address string) *dashboard.Board {
	if !p.cfg.Dashboard {
		return nil
	}
	resolve, group := engines.Dialects(p.cfg.Connector), engines.Builds(p.cfg)
	return dashboard.New(dashboard.Options{
		Self: dashboard.Self{
			ID: p.id, Address: address, Version: version.String(), Fallback: p.cfg.Fallback == config.FallbackDecode,
			Admin: p.cfg.AdminAPIKey != "", Actions: httpapi.AdminActions(),
		},
		Members: p.watcher.Snapshot, List: list, Requests: requests, Findings: p.notices, Log: p.log.WithField("component", "dashboard"),
		Facts: func(in *instance.Instance) dashboard.Facts {
			f := dashboard.Facts{Connector: resolve(in), Ranks: p.sched.Loads.RanksInFlight(in)}
			if group != nil {
				f.Group = instance.Printable(group(in), 64)
			}
			return f
		},
		Hits: func(each func(instance.Key, dashboard.Hits)) {
			p.sched.Loads.Hits(func(k instance.Key, h sched.Hits) { each(k, dashboard.Hits{Asked: h.Asked, Found: h.Found}) })
		},
		Etcd:    func() dashboard.Etcd { return boardEtcd(etcd()) },
		Proxies: p.boardProxies,
	})
}

func boardEtcd(s httpapi.EtcdStatus) dashboard.Etcd {
	return dashboard.Etcd{
		State: s.State, Live: s.State == string(watch.Live), Embedded: s.Embedded, Endpoints: s.Endpoints, Ended: s.Ended,
		LastContact: s.LastContact, LastError: instance.Printable(s.LastError, 300), Orphans: s.Orphans, Held: s.Held, Kept: len(s.Kept),
	}
}

func (p *app) boardProxies(ctx context.Context) ([]dashboard.Proxy, error) {
	list, err := p.store.Reader.Proxies(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]dashboard.Proxy, 0, len(list))
	for _, one := range list {
		is := dashboard.Proxy{ID: one.ID, Address: one.Address, Version: one.Version, Applied: one.Applied, Own: one.ID == p.id}
		if one.StartedAt != nil {
			is.Started = one.StartedAt.UnixMilli()
		}
		out = append(out, is)
	}
	return out, nil
}

// sample returns the data of a request for the dashboard.
func sample(e *forward.Entry) dashboard.Sample {
	s := dashboard.Sample{Prefill: addressOf(e.Prefill), Decode: addressOf(e.Decode), Alone: e.DecodeOnly != "", FirstToken: e.FirstToken, BetweenTokens: e.Gap, Total: e.Duration}
	switch e.Outcome {
	case forward.OutcomeOK:
		s.End = dashboard.Served
	case forward.OutcomeClientError, forward.OutcomeClientGone:
		s.End = dashboard.Refused
	default:
		s.End = dashboard.Failed
	}
	return s
}

// addressOf returns the address of a target, which may have a rank: address#rank.
func addressOf(target string) string {
	address, _, _ := strings.Cut(target, "#")
	return address
}
