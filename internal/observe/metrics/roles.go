package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// Roles is the source of the metrics about the load of roles, read at scrape time.
type Roles struct {
	Advice func() []instance.Advice
	// Moves calls emit for the number of automatic changes to each role, by result.
	Moves func(emit func(role instance.Role, result string, n int64))
	Limit int // models with series
}

// Register registers the metrics.
func (r Roles) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(r.read,
		scraped.New("pd_role_pressure", "Predicted load of a role in units of its target, by the first model of the instances: above 1 the target is missed. Absent while too few requests were measured.", "role", "model"),
		scraped.New("pd_instances_wanted", "Number of instances that a role should have. Absent while too few requests were measured.", "role", "model"),
		scraped.New("pd_role_moves_total", "Automatic changes of roles by this proxy, by the new role and result: moved, advised (--auto-roles advise), failed.", "role", "result"),
	))
}

func (r Roles) read(emit scraped.Emit) {
	list := r.Advice()
	for _, a := range list[:min(len(list), len(instance.Roles())*r.Limit)] {
		if a.Known {
			model := instance.Printable(a.Model, maxModelLabel)
			emit("pd_role_pressure", a.Pressure, string(a.Role), model)
			emit("pd_instances_wanted", float64(a.Wanted), string(a.Role), model)
		}
	}
	r.Moves(func(role instance.Role, result string, n int64) {
		emit("pd_role_moves_total", float64(n), string(role), result)
	})
}
