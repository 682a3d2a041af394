package metrics

import "github.com/prometheus/client_golang/prometheus"

// Traces returns the number of spans that did not reach the collector.
type Traces func() uint64

// Register registers the metric.
func (t Traces) Register(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "pd_trace_spans_dropped_total", Help: "Spans that were dropped: their collector was too slow, or did not accept them.",
	}, func() float64 { return float64(t()) }))
}
