package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// Bodies returns the memory of request bodies at scrape time: the bytes in use, their limit, and the
// number of requests that were refused because of it.
type Bodies func() (held, limit, refused int64)

// Register registers the metrics.
func (b Bodies) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) {
		held, limit, refused := b()
		emit("pd_request_bodies_bytes", float64(held))
		emit("pd_request_bodies_limit_bytes", float64(limit))
		emit("pd_request_bodies_refused_total", float64(refused))
	},
		scraped.New("pd_request_bodies_bytes", "Memory of the request bodies that the proxy reads or may still send, and of large answers that it holds back."),
		scraped.New("pd_request_bodies_limit_bytes", "Limit for this memory (--max-bodies-memory)."),
		scraped.New("pd_request_bodies_refused_total", "Requests that were refused, or lost their answer, because this memory was full."),
	))
}
