package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
)

// APIKeys is the source of the metrics about client keys, read at scrape time.
type APIKeys struct{ Ring *apikeys.Ring }

// Register registers the metrics.
func (k APIKeys) Register(reg prometheus.Registerer) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pd_api_keys", Help: "Active API keys of clients. 0 means that clients need no key, unless there is a file of keys.",
		}, func() float64 { return float64(k.Ring.Len()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pd_api_keys_file_rejected", Help: "1 while the changed file of keys is rejected and the previous keys stay active.",
		}, func() float64 {
			if k.Ring.Problem() != "" {
				return 1
			}
			return 0
		}),
	)
}
