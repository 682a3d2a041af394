package proxy

import (
	"context"
	"math"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/metrics"
	"github.com/pdmesh/pdmesh/internal/others"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/scrape"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// Load implements scrape.Asker.
func (p prober) Load(ctx context.Context, in *instance.Instance) ([]vllm.RankLoad, error) {
	return p.client.Load(ctx, vllm.BaseURL(in))
}

// scrape asks the engines for their load until ctx ends, unless that is off.
func (p *app) scrape(ctx context.Context) {
	if p.cfg.ScrapeInterval == 0 {
		return
	}
	scrape.New(scrape.Options{
		Members: p.watcher.Snapshot, Asker: p.prober, Sink: p.sched.SetEngine, Interval: p.cfg.ScrapeInterval,
	}).Run(ctx)
}

// listLoad is what /status tells of the load of an instance, beside its legs.
func (p *app) listLoad(k instance.Key) *instance.ListedLoad {
	l, ok := p.sched.Total(k)
	if !ok {
		return nil
	}
	out := &instance.ListedLoad{WaitingTokens: l.Waiting, HeldTokens: l.Held, Others: math.Round(l.Others*100) / 100}
	if e := l.Engine; e != nil {
		out.Engine = &instance.ListedEngine{
			Age: time.Since(e.At).Round(time.Millisecond).Seconds(), Capacity: e.All.Capacity, Usage: e.All.Usage,
			Running: e.All.Running, Waiting: e.All.Waiting, Starved: e.All.Starved, Fetching: e.All.Fetching,
			Ranks: len(e.Ranks), Full: k.Role == instance.Decode && e.Full(),
		}
	}
	return out
}

// loadSource is what this proxy tells the others, nil when that is off.
func (p *app) loadSource() *discovery.LoadSource {
	if !p.cfg.LoadDigests {
		return nil
	}
	last := int64(0)
	return &discovery.LoadSource{
		Applied: func() int64 {
			// What was applied is picked from once it has been published.
			if is := p.watcher.Status().Applied; p.watcher.Snapshot().Revision >= is {
				last = is
			}
			return last
		},
		InFlight: p.inFlight,
		Changed:  func() <-chan struct{} { return p.watcher.Snapshot().Changed() },
	}
}

func (p *app) inFlight() []discovery.LoadEntry {
	snap, now := p.watcher.Snapshot(), time.Now()
	var out []discovery.LoadEntry
	p.sched.Totals(func(k instance.Key, t sched.Total) {
		in, there := snap.Lookup(k)
		e := discovery.LoadEntry{
			Key: k, LoadCount: discovery.LoadCount{InFlight: max(0, t.InFlight), Waiting: max(0, t.Waiting), Held: max(0, t.Held)},
			Leaving: !there || in.Intent != "" || in.Record.State == instance.Draining,
		}
		// Whoever waits for its end waits for that of its KV caches.
		if e.Leaving && e.InFlight == 0 && p.sched.Pinned(k, now) {
			e.InFlight = 1
		}
		if e.LoadCount != (discovery.LoadCount{}) {
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

// weigh keeps what policies know of the other proxies until ctx ends: it takes in what
// they tell when they do, and once a second what has become old.
func (p *app) weigh(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		start := time.Now()
		var of map[string]sched.Counts
		var changed <-chan struct{}
		several := false
		if p.loads != nil {
			changed = p.loads.Changed()
			all, now := p.loads.All(), time.Now()
			of, several = others.Sum(all, p.id, now), others.Any(all, p.id, now)
		}
		p.sched.SetOthers(of, several)
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

// digests is what /status shows of the proxies' digests.
func (p *app) digests() []httpapi.LoadDigest {
	if p.loads == nil {
		return nil
	}
	out := []httpapi.LoadDigest{}
	for _, d := range p.loads.All() {
		age := time.Since(d.Heard)
		out = append(out, httpapi.LoadDigest{
			ID: d.ID, Own: d.ID == p.id, Applied: d.Applied, Age: age.Round(time.Millisecond).Seconds(),
			Instances: len(d.Load), LeftOut: d.LeftOut, Worth: others.Worth(age), Ignored: d.Ignored,
		})
	}
	return out
}

// digestMetrics counts the digests of the others.
func (p *app) digestMetrics() (d metrics.Digests) {
	for _, one := range p.digests() {
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
