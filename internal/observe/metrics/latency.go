package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pdmesh/pdmesh/internal/forward/relay"
)

// factory creates metrics and registers them.
type factory struct{ promauto.Factory }

func (f factory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) latency(name, help string, bounds []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: bounds}, labels)
}

// The bounds, in seconds, are those of vLLM's histograms, so that both can be compared. Some histograms
// have additional lower bounds, for warm caches and for the stages of the proxy itself.

func firstTokens() []float64 {
	return []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
}

func betweenTokens() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
}

// Between returns the histogram of the times between the events of an endpoint's streams.
func (m *Metrics) Between(endpoint string) relay.Observer { return m.between.WithLabelValues(endpoint) }
