package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// ModelRoutes returns the model routes at scrape time.
type ModelRoutes func() []instance.ListedModelRoute

// maxRouteTargets bounds the targets that have series.
const maxRouteTargets = 256

// Register registers the metrics.
func (m ModelRoutes) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) {
		n := 0
		for _, r := range m() {
			for _, t := range r.Targets {
				if n++; n > maxRouteTargets {
					return
				}
				emit("pd_model_route_requests_total", float64(t.Requests), r.Name, t.Target)
				emit("pd_model_route_passed_over_total", float64(t.PassedOver), r.Name, t.Target)
				emit("pd_model_route_usable_instances", float64(t.Prefill), r.Name, t.Target, string(instance.Prefill))
				emit("pd_model_route_usable_instances", float64(t.Decode), r.Name, t.Target, string(instance.Decode))
			}
		}
	},
		scraped.New("pd_model_route_requests_total", "Requests that have ended, by model route and target.", "route", "target"),
		scraped.New("pd_model_route_passed_over_total", "Requests that another target of the model route got, because this one could not serve them.", "route", "target"),
		scraped.New("pd_model_route_usable_instances", "Instances that a target of a model route can use.", "route", "target", "role"),
	))
}
