package proxy

import (
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
	o := admission.Options{
		Mode: admission.Mode(b.cfg.Queue), TPOT: b.cfg.TPOTTarget, MaxWaiting: b.cfg.QueueLength, MaxBytes: memory.Bodies(b.cfg) / 2,
		Rates: b.estimator.Rates, Tokens: b.sched.Tokens,
		Engines: func(model string) (prefill, decode []admission.Engine) {
			return b.engines(instance.Prefill, model), b.engines(instance.Decode, model)
		},
	}
	if o.Mode == admission.Off {
		return
	}
	o.Observer = metrics.NewQueue(b.registry, func() []instance.ListedQueue { return b.queues.Status() }, b.cfg.MetricsModels)
	b.queues = admission.New(o)
}

// engines returns the ranks of a role that may be picked for a model.
func (b *builder) engines(role instance.Role, model string) []admission.Engine {
	var out []admission.Engine
	for _, c := range b.sched.Usable(role, model) {
		out = append(out, admission.Engine{Address: sched.AddressOf(c.Instance, c.Rank), Load: c.Load})
	}
	return out
}
