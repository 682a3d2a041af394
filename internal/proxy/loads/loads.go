// Package loads combines the sources of the load of instances: the requests in flight of this
// proxy, load digests of other proxies, and metrics of engines.
package loads

import (
	"context"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/engine/scrape"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Loads combines the scheduler's counts, the metrics of engines and the digests of other proxies.
type Loads struct {
	ID             string // of this proxy
	Watcher        *watch.Watcher
	Scheduler      *sched.Scheduler
	Others         *loaddigest.Watcher // nil: digests are off
	Placements     *prefix.Placements
	Keys           *keylimit.Table
	Log            logrus.FieldLogger
	Prober         scrape.LoadReader
	ScrapeInterval time.Duration // 0: metrics of engines are not read

	// Queue returns the state of the queue to publish, and OnDigests receives the digests of all
	// proxies, at least once a second.
	Queue     func() []schema.QueueEntry
	OnDigests func([]*loaddigest.ProxyLoad)
	// Pace returns the pace of the latest requests on a rank, whose address is from sched.AddressOf.
	Pace func(instance.Key) instance.ListedPace
	// Changed is called when an engine has reported its load.
	Changed func()

	scraper *scrape.Scraper
}

// Scrape reads the load of the engines until ctx ends. It does nothing if ScrapeInterval is 0.
func (l *Loads) Scrape(ctx context.Context) {
	if l.ScrapeInterval > 0 {
		l.scraper.Run(ctx)
	}
}

// Read reads the metrics of one engine. It implements health.Options.Read.
func (l *Loads) Read(ctx context.Context, in *instance.Instance) { l.scraper.Read(ctx, in) }

// WaitingTokens implements health.Options.WaitingTokens.
func (l *Loads) WaitingTokens(k instance.Key) int64 {
	t, _ := l.Scheduler.Loads.Total(k)
	return t.Waiting + int64(t.OthersWaiting)
}

// Use sets the scheduler and the tracker. It is called once, before all other methods.
func (l *Loads) Use(s *sched.Scheduler, t *health.Tracker) {
	l.Scheduler = s
	l.scraper = scrape.New(scrape.Options{
		Members: l.Watcher.Snapshot, Reader: l.Prober, Observe: t.Observe, Check: t.CheckSuspended, Interval: l.ScrapeInterval,
		Sink: func(k instance.Key, report *policy.Engine) {
			s.Loads.SetEngine(k, report)
			l.Changed()
		},
		InFlight: func(k instance.Key) float64 {
			is, _ := s.Loads.Total(k)
			return float64(is.InFlight) + is.Others
		},
	})
}

// Of returns the load of an instance for /status.
func (l *Loads) Of(k instance.Key) *instance.ListedLoad {
	t, ok := l.Scheduler.Loads.Total(k)
	if !ok {
		return nil
	}
	out := &instance.ListedLoad{WaitingTokens: t.Waiting, HeldTokens: t.Held, Others: math.Round(t.Others*100) / 100}
	l.ranks(k, out)
	if e := t.Engine; e != nil {
		out.Engine = &instance.ListedEngine{
			Age: time.Since(e.At).Round(time.Millisecond).Seconds(), Capacity: e.All.Capacity, Usage: e.All.Usage,
			Running: e.All.Running, Waiting: e.All.Waiting, Starved: e.All.Starved, Fetching: e.All.Fetching,
			Ranks: len(e.Ranks), Full: k.Role == instance.Decode && e.Full(),
		}
	}
	return out
}

// Source returns the load digest of this proxy, nil if digests are off.
func (l *Loads) Source() *loaddigest.Source {
	if l.Others == nil {
		return nil
	}
	return &loaddigest.Source{
		Applied:     func() int64 { return l.Watcher.Status().Applied },
		InFlight:    l.inFlight,
		HasPrompts:  l.Placements.Waiting,
		TakePrompts: l.Placements.Take,
		Keys:        l.Keys.Publish,
		Queue:       l.Queue,
		Changed:     func() <-chan struct{} { return l.Watcher.Snapshot().Changed() },
	}
}

func (l *Loads) inFlight() []schema.LoadEntry {
	snap, now := l.Watcher.Snapshot(), time.Now()
	var out []schema.LoadEntry
	l.Scheduler.Loads.Totals(func(k instance.Key, t sched.Total) {
		in, there := snap.Lookup(k)
		e := schema.LoadEntry{
			Key: k, LoadCount: schema.LoadCount{InFlight: max(0, t.InFlight), Waiting: max(0, t.Waiting), Held: max(0, t.Held)},
			Leaving: !there || in.Intent != "" || in.Record.State == instance.Draining,
		}
		if e.Leaving && t.InRole == 0 {
			e.LoadCount = schema.LoadCount{} // an engine in both roles may continue to serve in the other one
		}
		// A drain also waits until no KV cache of the instance is pinned.
		if there && e.Leaving && e.InFlight == 0 && l.Scheduler.Loads.Pinned(in, now) {
			e.InFlight = 1
		}
		if e.LoadCount != (schema.LoadCount{}) {
			out = append(out, e)
		}
	})
	return out
}

// FollowOthers updates the state of the other proxies for policies until ctx ends.
func (l *Loads) FollowOthers(ctx context.Context) {
	var stores int64 // number of times that etcd was replaced
	l.Others.FollowOthers(ctx, l.ID, func(others loaddigest.Others) {
		if n := l.Watcher.Status().Epochs; n != stores {
			stores = n
			l.Others.Relist()
		}
		l.Placements.SetOthers(others.Present)
		for _, d := range others.New {
			if err := l.Placements.Read(d.Prompts); err != nil {
				l.Log.WithField("proxy", d.ID).WithField("error", err).Debug("prompt digest of another proxy ignored")
			}
		}
		l.Keys.SetDemands(l.ID, others.Keys)
		l.Scheduler.Loads.SetOthers(others.Counts)
		l.OnDigests(others.All)
	})
}

// Digests returns the load digests of the proxies for /status.
func (l *Loads) Digests() []httpapi.LoadDigest {
	if l.Others == nil {
		return nil
	}
	out := []httpapi.LoadDigest{}
	for _, d := range l.Others.All() {
		age := time.Since(d.ReceivedAt)
		out = append(out, httpapi.LoadDigest{
			ID: d.ID, Own: d.ID == l.ID, Applied: d.Applied, Age: age.Round(time.Millisecond).Seconds(),
			Instances: len(d.Load), LeftOut: d.LeftOut, Weight: loaddigest.Weight(age), Ignored: d.Ignored,
		})
	}
	return out
}

// Metrics counts the digests of the other proxies.
func (l *Loads) Metrics() (d metrics.Digests) {
	for _, one := range l.Digests() {
		switch {
		case one.Own:
		case one.Ignored != "":
			d.Ignored++
		case one.Weight < 1 && one.Instances > 0:
			d.Old++
		default:
			d.Used++
		}
	}
	return d
}
