package proxy

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/dashboard"
	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
)

// newBoard returns the dashboard, or nil with --dashboard off. list returns an instance as in /status.
func (p *app) newBoard(list func(*instance.Instance) instance.Listing, etcd func() httpapi.EtcdStatus, address string) *dashboard.Board {
	if !p.cfg.Dashboard {
		return nil
	}
	pairKey := engines.PairKeys(p.cfg)
	return dashboard.New(dashboard.Options{
		Self: dashboard.Self{
			ID: p.id, Address: address, Version: version.String(), Fallback: p.cfg.Fallback == config.FallbackDecode,
			Admin: p.admins != nil, Actions: httpapi.AdminActions(),
		},
		Members: p.watcher.Snapshot, List: list, Requests: p.handler.Requests, Findings: p.notices, Log: p.log.WithField("component", "dashboard"),
		Facts: func(in *instance.Instance) dashboard.Facts {
			k := pairKey(in)
			return dashboard.Facts{Connector: k.Connector, Group: instance.Printable(k.Build, 64)}
		},
		Etcd:    func() dashboard.Etcd { return boardEtcd(etcd()) },
		Own:     func() (*figures.Sample, error) { return sample(p.counted, nil) },
		Proxies: (&survey{app: p}).read, Opinion: p.opinion,
	})
}

func boardEtcd(s httpapi.EtcdStatus) dashboard.Etcd {
	return dashboard.Etcd{
		State: s.State, Live: s.State == string(watch.Live), Embedded: s.Embedded, Endpoints: s.Endpoints, Ended: s.Ended,
		LastContact: s.LastContact, LastError: instance.Printable(s.LastError, 300), Orphans: s.Orphans, Held: s.Held, Kept: len(s.Kept),
	}
}

// gatherers returns all metrics of this proxy.
func (p *app) gatherers() prometheus.Gatherers { return prometheus.Gatherers{p.registry, p.counted} }

// sample returns the figures of metrics and queues of this proxy.
func sample(metrics prometheus.Gatherer, queues []instance.ListedQueue) (*figures.Sample, error) {
	families, err := metrics.Gather()
	if err != nil {
		return nil, err
	}
	return figures.NewSample(families, queues), nil
}

// surveyWindow is the time over which the dashboard computes figures of several proxies.
const surveyWindow = 15 * time.Second

// survey reads the figures of all proxies for the dashboard. Only one goroutine at a time uses it.
type survey struct {
	*app
	history figures.History
	last    time.Time // time of the latest samples in history
	// ends has the times at which the model routes in documents expire.
	ends      map[instance.Key]time.Time
	documents *instance.Documents
}

// read lists the proxies, and reads the metrics of all others.
func (s *survey) read(ctx context.Context) (dashboard.Fleet, error) {
	var f dashboard.Fleet
	reports, err := s.store.Reader.Reports(ctx, nil)
	if err != nil {
		return f, err
	}
	own, err := sample(s.gatherers(), s.queues.Status())
	if err != nil {
		return f, err
	}
	var others []figures.Target
	for i := range reports.Proxies {
		if one := &reports.Proxies[i]; one.ID != s.id {
			u, err := one.BaseURL()
			others = append(others, figures.Target{ID: one.ID, URL: u, Err: err})
		}
	}
	client := figures.NewClient()
	samples, missing := figures.Read(ctx, client, surveyLimit, others)
	client.CloseIdleConnections()
	samples[s.id] = own
	now := time.Now()
	if now.Sub(s.last) > surveyWindow { // no page was open: the older samples are outside the window
		s.history = figures.History{Window: surveyWindow}
	}
	s.last = now
	s.history.Add(samples)
	var totals figures.History
	totals.Add(samples)
	f.Figures, f.Totals = s.history.Fleet(), totals.Fleet()
	if f.Routes, err = s.routes(ctx, f.Totals); err != nil {
		return f, err
	}
	for i := range reports.Proxies {
		one := &reports.Proxies[i]
		is := dashboard.Proxy{ID: one.ID, Address: one.Address, Version: one.Version, Applied: one.Applied, Own: one.ID == s.id, Missing: missing[one.ID]}
		if one.StartedAt != nil {
			is.Started = one.StartedAt.UnixMilli()
		}
		f.Proxies = append(f.Proxies, is)
	}
	f.Findings, err = s.examine(ctx, reports)
	return f, err
}

// routes lists the model routes with the requests of all proxies.
func (s *survey) routes(ctx context.Context, totals *figures.Fleet) ([]instance.ListedModelRoute, error) {
	list := s.listModelRoutes()
	if is := s.watcher.Snapshot().Documents; len(list) > 0 && s.documents != is { // cached ends stay valid: a lease of --for is not renewed
		ends, err := s.store.Reader.Ends(ctx, s.layout.Document(instance.Key{Role: schema.Models}))
		if err != nil {
			return nil, err
		}
		s.ends, s.documents = ends, is
	}
	requests := totals.Counts(figures.RouteRequests)
	for i := range list {
		r := &list[i]
		if end, ok := s.ends[instance.Key{Role: schema.Models, Address: r.Name}]; ok {
			r.Ends = &end
		}
		for j := range r.Targets {
			t := &r.Targets[j]
			t.Requests = uint64(requests[figures.Series{Name: figures.RouteRequests, Label: r.Name + "\n" + t.Target}])
		}
	}
	return list, nil
}

// surveyLimit bounds the time to read one proxy.
const surveyLimit = 2 * time.Second

// examine returns the findings of doctor about reports and the membership that this proxy knows. It
// omits notices, which the dashboard shows anyway.
func (s *survey) examine(ctx context.Context, reports store.Reports) ([]dashboard.Finding, error) {
	snap := s.watcher.Snapshot()
	p := doctor.Picture{Now: time.Now(), Etcd: doctor.Etcd{Root: s.layout.Root(), Revision: snap.Revision}, Members: doctor.Members{Snapshot: snap}}
	for _, one := range reports.Proxies {
		p.Proxies = append(p.Proxies, doctor.Proxy{ProxyPresence: one})
	}
	var err error
	if p.Agents.Remote, err = s.store.Reader.RefusedAgents(ctx); err != nil {
		return nil, err
	}
	out := []dashboard.Finding{}
	for _, f := range p.Examine() {
		if f.Check != "notice" && f.Check != "serving" {
			out = append(out, dashboard.Finding{Severity: string(f.Severity), Text: f.Subject + ": " + f.What, Cure: f.Cure})
		}
	}
	return out, nil
}
