package metrics

import "github.com/prometheus/client_golang/prometheus"

// Bodies is the source of the metrics about request bodies, read at scrape time.
type Bodies struct {
	// Memory returns the bytes in use, their limit, and the number of requests that were
	// refused because of it.
	Memory func() (held, limit, refused int64)
}

// Register registers the metrics.
func (b Bodies) Register(reg prometheus.Registerer) {
	reg.MustRegister(bodies{
		b: b,
		held: prometheus.NewDesc("pd_request_bodies_bytes",
			"Memory of the request bodies that the proxy reads or may still send, and of large answers that it holds back.", nil, nil),
		limit: prometheus.NewDesc("pd_request_bodies_limit_bytes",
			"Limit for this memory (--max-bodies-memory).", nil, nil),
		refused: prometheus.NewDesc("pd_request_bodies_refused_total",
			"Requests that were refused, or lost their answer, because this memory was full.", nil, nil),
	})
}

type bodies struct {
	b                    Bodies
	held, limit, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c bodies) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.held
	ch <- c.limit
	ch <- c.refused
}

// Collect implements prometheus.Collector.
func (c bodies) Collect(ch chan<- prometheus.Metric) {
	held, limit, refused := c.b.Memory()
	ch <- prometheus.MustNewConstMetric(c.held, prometheus.GaugeValue, float64(held))
	ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(limit))
	ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(refused))
}
