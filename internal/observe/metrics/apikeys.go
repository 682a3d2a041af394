package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// APIKeys is the source of the metrics about client keys, read at scrape time.
type APIKeys struct{ Ring *apikeys.Ring }

// Register registers the metrics.
func (k APIKeys) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) {
		emit("pd_api_keys", float64(k.Ring.Len()))
		emit("pd_api_keys_file_rejected", scraped.Truth(k.Ring.Problem() != ""))
	},
		scraped.New("pd_api_keys", "Active API keys of clients. 0 means that clients need no key, unless there is a file of keys."),
		scraped.New("pd_api_keys_file_rejected", "1 while the changed file of keys is rejected and the previous keys stay active."),
	))
}
