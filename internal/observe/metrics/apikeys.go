package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
)

// APIKeys is the source of the metrics about API keys, read at scrape time.
type APIKeys struct {
	Ring, Admins *apikeys.Ring // of clients and of operators
	Use          *keylimit.Table
}

// Register registers the metrics.
func (k APIKeys) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) {
		emit("pd_api_keys", float64(k.Ring.Len()))
		emit("pd_api_keys_file_rejected", scraped.Truth(k.Ring.Problem() != "" || k.Admins.Problem() != ""))
		if k.Ring != nil {
			emit("pd_requests_unauthorized_total", float64(k.Ring.Refused.Load()))
		}
		k.Use.Each(func(name string, all keylimit.Totals) {
			emit("pd_key_requests_total", float64(all.Requests), name)
			emit("pd_key_tokens_total", float64(all.Input), name, "input")
			emit("pd_key_tokens_total", float64(all.Cached), name, "cached")
			emit("pd_key_tokens_total", float64(all.Output), name, "output")
			for _, kind := range keylimit.Kinds() {
				emit("pd_key_refused_total", all.Refused[kind], name, kind.String())
			}
		})
	},
		scraped.New("pd_api_keys", "Active API keys of clients. 0 means that clients need no key, unless there is a file of keys."),
		scraped.New("pd_requests_unauthorized_total", "Requests of clients that were refused with 401, because they had no valid API key."),
		scraped.New("pd_key_requests_total", "Requests for engines that have ended, without those that are invalid or above a limit, by the name of the API key.", "key"),
		scraped.New("pd_key_tokens_total", "Tokens of requests, by the name of the API key: input, cached (of the input, in the cache of the instance that computed it), output.", "key", "what"),
		scraped.New("pd_key_refused_total", "Requests that were refused because they were above a limit of their API key.", "key", "limit"),
		scraped.New("pd_api_keys_file_rejected", "1 while a changed file of keys, of clients or of operators, is rejected and its previous keys stay active."),
	))
}
