package proxy

import (
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/proxy/memory"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// makeQueue makes the queue in front of the engines, and its metrics.
func (b *builder) makeQueue() {
	b.estimator = new(estimate.Estimator)
	b.load.Pace = b.estimator.Pace
	o := admission.Options{
		Mode: admission.Mode(b.cfg.Queue), TPOT: b.cfg.TPOTTarget, MaxWaiting: b.cfg.QueueLength, MaxBytes: memory.Bodies(b.cfg) / 2,
		Rates: b.estimator.Rates, Tokens: b.sched.Tokens,
		Engines: func(model string, labels instance.Selector) (prefill, decode []admission.Engine) {
			return b.engines(instance.Prefill, model, labels), b.engines(instance.Decode, model, labels)
		},
	}
	if o.Mode == admission.Off {
		return
	}
	o.Observer = metrics.NewQueue(b.registry, func() []instance.ListedQueue { return b.queues.Status() }, b.cfg.MetricsModels)
	b.queues = admission.New(o)
}

// engines returns the ranks of a role that may be picked for a model and labels.
func (b *builder) engines(role instance.Role, model string, labels instance.Selector) []admission.Engine {
	var out []admission.Engine
	for _, c := range b.sched.Usable(role, model, labels) {
		out = append(out, admission.Engine{Address: sched.AddressOf(c.Instance, c.Rank), Load: c.Load})
	}
	return out
}

// publishedQueue returns the queue entries of this proxy's load digest.
func (p *app) publishedQueue() []schema.QueueEntry {
	var out []schema.QueueEntry
	for _, e := range p.queues.Entries(schema.MaxQueue) {
		out = append(out, schema.QueueEntry{Model: e.Model, Class: int(e.Class), Key: e.Key, Attained: int64(e.Attained), Backlog: int64(e.Backlog)})
	}
	return out
}

// followQueues updates the queues with the digests of the other proxies.
func (p *app) followQueues(digests []*loaddigest.ProxyLoad) {
	if p.queues != nil {
		waits := slices.ContainsFunc(p.publishedQueue(), func(e schema.QueueEntry) bool { return e.Backlog > 0 })
		p.queues.SetOthers(othersOf(digests, p.id, waits, time.Now()))
	}
}

// othersOf returns the queues and the load of all proxies except own, from their digests. waits reports
// whether requests wait in this proxy.
func othersOf(digests []*loaddigest.ProxyLoad, own string, waits bool, now time.Time) *admission.Others {
	o := &admission.Others{}
	byLoad, all, proxies, blind := 0.0, 0.0, 0, false
	for _, d := range digests {
		age := now.Sub(d.ReceivedAt)
		weight := loaddigest.Weight(age)
		if d.ID == own {
			blind = (waits || len(d.Load) > 0) && weight < 1 // this proxy publishes its load: an old digest means that etcd does not deliver
			continue
		}
		if d.Ignored != "" {
			continue
		}
		proxies++
		waiting := 0.0
		for _, c := range d.Engines {
			waiting += weight * float64(c.Waiting)
		}
		all += waiting
		competes := false
		entries := make([]admission.Entry, 0, len(d.Queue))
		for _, e := range d.Queue {
			is := admission.Entry{
				Model: e.Model, Class: admission.Class(e.Class), Key: e.Key, //nolint:gosec // 0 to 2
				Attained: float64(e.Attained) * admission.Decay(age), Backlog: float64(e.Backlog) * weight,
			}
			competes = competes || is.Backlog > 0
			entries = append(entries, is)
		}
		if competes {
			o.Queues = append(o.Queues, entries)
		} else {
			o.Attained = append(o.Attained, entries...)
			byLoad += waiting
		}
	}
	if all > 0 {
		o.ByLoad = byLoad / all
	}
	if blind {
		o.Blind = proxies
	}
	return o
}
