package proxy

import (
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// decodeModelRoutes returns the decoder of the documents of model routes. It omits invalid documents.
func decodeModelRoutes(log logrus.FieldLogger) modelroute.Decode {
	return func(documents *instance.Documents) (routes []*modelroute.Route) {
		for _, d := range documents.In(schema.Models) {
			r, err := schema.DecodeModelRoute(d.Value)
			if err != nil {
				log.WithError(err).WithField("model", instance.Printable(d.Address, 200)).Warn("model route is not used")
				continue
			}
			out := &modelroute.Route{Name: d.Address, Sticky: r.Sticky, Own: r.Splits(d.Address)}
			for i := range r.Targets {
				t := &r.Targets[i]
				labels, _ := t.Labels() // DecodeModelRoute has checked it
				out.Targets = append(out.Targets, &modelroute.Target{Name: instance.Printable(t.String(), 256), Model: t.Model, Labels: labels, Weight: t.Share()})
			}
			routes = append(routes, out)
		}
		return routes
	}
}

// listModelRoutes returns the model routes as this proxy sees them.
func (p *app) listModelRoutes() []instance.ListedModelRoute {
	snap := p.watcher.Snapshot()
	documents := snap.Documents.In(schema.Models)
	if len(documents) == 0 {
		return nil
	}
	var seen []*instance.Instance
	for _, in := range snap.All() {
		seen = append(seen, in.Seen(p.opinion(in.Key)))
	}
	out := make([]instance.ListedModelRoute, 0, len(documents))
	for _, d := range documents {
		l := schema.ListModelRoute(d, seen)
		if r := p.routes.Find(d.Address); r != nil && len(r.Targets) == len(l.Targets) {
			for i, t := range r.Targets {
				l.Targets[i].Requests, l.Targets[i].PassedOver = t.Requests.Load(), t.PassedOver.Load()
			}
		}
		out = append(out, l)
	}
	return out
}

// maxRouteFindings bounds the findings about model routes.
const maxRouteFindings = 16

// routeFindings returns the problems with model routes.
func (p *app) routeFindings() (out []string) {
	for _, r := range p.listModelRoutes() {
		if r.Problem != "" {
			out = append(out, fmt.Sprintf("model route %s is not used: %s", r.Name, r.Problem))
		}
		for _, t := range r.Targets {
			if r.Problem == "" && t.Weight > 0 && t.Decode+t.Prefill == 0 {
				out = append(out, fmt.Sprintf("model route %s: no instance of target %s can be used; its requests go to other targets, if those have any", r.Name, t.Target))
			}
		}
		if len(out) >= maxRouteFindings {
			return out[:maxRouteFindings]
		}
	}
	return out
}
