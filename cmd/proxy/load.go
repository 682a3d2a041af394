package main

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/scrape"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// Load implements scrape.Asker.
func (p prober) Load(ctx context.Context, in *instance.Instance) ([]vllm.RankLoad, error) {
	return p.client.Load(ctx, vllm.BaseURL(in))
}

// scrape asks the engines for their load until ctx ends, unless that is off.
func (p *proxy) scrape(ctx context.Context) {
	if p.cfg.ScrapeInterval == 0 {
		return
	}
	scrape.New(scrape.Options{
		Members: p.watcher.Snapshot, Asker: p.prober, Sink: p.sched.SetEngine, Interval: p.cfg.ScrapeInterval,
	}).Run(ctx)
}

// listLoad is what /status tells of the load of an instance, beside its legs.
func (p *proxy) listLoad(k instance.Key) *instance.ListedLoad {
	l, ok := p.sched.Total(k)
	if !ok {
		return nil
	}
	out := &instance.ListedLoad{WaitingTokens: l.Waiting, HeldTokens: l.Held}
	if e := l.Engine; e != nil {
		out.Engine = &instance.ListedEngine{
			Age: time.Since(e.At).Round(time.Millisecond).Seconds(), Capacity: e.All.Capacity, Usage: e.All.Usage,
			Running: e.All.Running, Waiting: e.All.Waiting, Starved: e.All.Starved, Fetching: e.All.Fetching,
			Ranks: len(e.Ranks), Full: k.Role == instance.Decode && e.Full(),
		}
	}
	return out
}
