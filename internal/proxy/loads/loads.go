// Package loads is what a proxy knows of the load of instances, what it tells the other
// proxies of it, and what they tell.
package loads

import (
	"context"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/metrics"
	"github.com/pdmesh/pdmesh/internal/others"
	"github.com/pdmesh/pdmesh/internal/prefix"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/scrape"
)

// Loads joins the scheduler's counts, the engines' own figures and the digests of other
// proxies.
type Loads struct {
	ID             string // of this proxy
	Watcher        *watch.Watcher
	Scheduler      *sched.Scheduler
	Others         *lease.Loads // nil: off
	Placements     *prefix.Placements
	Log            logrus.FieldLogger
	Prober         scrape.Asker
	ScrapeInterval time.Duration // 0: engines are not asked
}

// Scrape asks the engines for their load until ctx ends, unless that is off.
func (l *Loads) Scrape(ctx context.Context) {
	if l.ScrapeInterval == 0 {
		return
	}
	scrape.New(scrape.Options{
		Members: l.Watcher.Snapshot, Asker: l.Prober, Sink: l.Scheduler.Loads.SetEngine, Interval: l.ScrapeInterval,
	}).Run(ctx)
}

// Of is what /status tells of the load of an instance, beside its legs.
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

// Source is what this proxy tells the others, nil when that is off.
func (l *Loads) Source() *lease.LoadSource {
	if l.Others == nil {
		return nil
	}
	last := int64(0)
	return &lease.LoadSource{
		Applied: func() int64 {
			// What was applied is picked from once it has been published.
			if is := l.Watcher.Status().Applied; l.Watcher.Snapshot().Revision >= is {
				last = is
			}
			return last
		},
		InFlight: l.inFlight,
		Untold:   l.Placements.Waiting,
		Prompts:  l.Placements.Take,
		Changed:  func() <-chan struct{} { return l.Watcher.Snapshot().Changed() },
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
		// Whoever waits for its end waits for that of its KV caches.
		if e.Leaving && e.InFlight == 0 && l.Scheduler.Loads.Pinned(k, now) {
			e.InFlight = 1
		}
		if e.LoadCount != (schema.LoadCount{}) {
			out = append(out, e)
		}
	})
	return out
}

// soon is how long what other proxies tell waits for more of it, seldom the longest that it
// waits: a thousand proxies tell of much all the time, and adding that up again and again
// must not cost more than a tenth of one core.
const (
	soon   = 10 * time.Millisecond
	seldom = time.Second / 2
)

// Weigh keeps what policies know of the other proxies until ctx ends: it takes in what
// they tell when they do, and once a second what has become old.
func (l *Loads) Weigh(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var seen others.Seen
	for {
		start := time.Now()
		var of map[string]sched.Counts
		var changed <-chan struct{}
		if l.Others != nil {
			changed = l.Others.Changed()
			all, now := l.Others.All(), time.Now()
			of = others.Sum(all, l.ID, now)
			l.Placements.SetOthers(others.Any(all, l.ID, now))
			l.hear(seen.News(all, l.ID))
		}
		l.Scheduler.Loads.SetOthers(of)
		more := min(max(soon, 10*time.Since(start)), seldom)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(more):
			}
		}
	}
}

// hear takes in the prompts that other proxies have placed.
func (l *Loads) hear(news []*lease.ProxyLoad) {
	for _, d := range news {
		if err := l.Placements.Read(d.Prompts); err != nil {
			l.Log.WithField("proxy", d.ID).WithField("error", err).Debug("what another proxy tells of its prompts is not used")
		}
	}
}

// Digests is what /status shows of the proxies' digests.
func (l *Loads) Digests() []httpapi.LoadDigest {
	if l.Others == nil {
		return nil
	}
	out := []httpapi.LoadDigest{}
	for _, d := range l.Others.All() {
		age := time.Since(d.Heard)
		out = append(out, httpapi.LoadDigest{
			ID: d.ID, Own: d.ID == l.ID, Applied: d.Applied, Age: age.Round(time.Millisecond).Seconds(),
			Instances: len(d.Load), LeftOut: d.LeftOut, Worth: others.Worth(age), Ignored: d.Ignored,
		})
	}
	return out
}

// Metrics counts the digests of the others.
func (l *Loads) Metrics() (d metrics.Digests) {
	for _, one := range l.Digests() {
		switch {
		case one.Own:
		case one.Ignored != "":
			d.Ignored++
		case one.Worth < 1 && one.Instances > 0:
			d.Old++
		default:
			d.Used++
		}
	}
	return d
}
