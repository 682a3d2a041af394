package metrics

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// Membership is the source of the metrics about the fleet, read at scrape time.
type Membership struct {
	Snapshot func() *instance.Snapshot
	// InFlight calls a function for every instance with this proxy's load on it.
	InFlight func(func(instance.Key, int64))
	// Picks calls a function for every policy of a role with the number of its picks.
	Picks func(func(role instance.Role, policy string, n uint64))
	// Picked calls a function for every instance with the number of legs that it was picked for.
	Picked func(func(instance.Key, uint64))
	// Elsewhere calls a function for each role and reason with the number of picks that
	// deviated from their session or zone.
	Elsewhere func(func(role instance.Role, reason string, n uint64))
	// Both calls a function for each role and reason with the number of picks of engines
	// in both roles.
	Both func(func(role instance.Role, reason string, n uint64))
	// View returns this proxy's view of an instance, "" for one that may be picked.
	View func(instance.Key) instance.View
	// Etcd returns the state of the membership watch.
	Etcd func() Etcd
	// Ready reports whether /readyz succeeds. known is false while the proxy stops.
	Ready func() (ready, known bool)
}

// Etcd is the state of the membership watch.
type Etcd struct {
	watch.Status
	// Own reports whether the proxy has an embedded etcd, OwnRuns whether it is running.
	// OwnEnds is the number of its unexpected exits.
	Own, OwnRuns bool
	OwnEnds      int64
}

// Register adds the gauges of the fleet. They are read at each scrape, so that instances which
// have left have no series.
func (m Membership) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) { m.read(emit); m.Etcd().read(emit) },
		scraped.New("pd_ready", "1 while requests can be served, as /readyz reports it, else 0; absent while the proxy stops."),
		scraped.New("pd_membership_revision", "etcd revision of the membership that the proxy knows."),
		scraped.New("pd_membership_live", "1 while the proxy follows etcd, 0 while it uses the last known membership."),
		scraped.New("pd_membership_instances", "Instances by role and view; view is serving, down, not_ready, weight_0, or what /status shows.", "role", "view"),
		scraped.New("pd_instance_in_flight", "Legs that this proxy has open on an instance; an engine in both roles has all of its legs with each role.", "role", "instance"),
		scraped.New("pd_instance_picks_total", "Legs that an instance was picked for.", "role", "instance"),
		scraped.New("pd_picks_total", "Instances picked for legs, by role and by the policy that picked.", "role", "policy"),
		scraped.New("pd_picks_elsewhere_total", "Picks of an instance other than that of the session, or outside the zone, by reason.", "role", "reason"),
		scraped.New("pd_both_picks_total", "Picks of an engine in both roles, by reason: chosen (others could be picked), or no_other.", "role", "reason"),
		scraped.New("pd_membership_state", "1 for the present state of the membership, 0 for the others.", "state"),
		scraped.New("pd_membership_audits_total", "Comparisons of all keys in etcd with the events of the watch, by result (ok, error).", "result"),
		scraped.New("pd_membership_drift_total", "Audits that found a change that the watch had missed."),
		scraped.New("pd_membership_epochs_total", "Times that etcd was found to be another store than before."),
		scraped.New("pd_membership_relists_total", "Lists of the whole membership, without the first."),
		scraped.New("pd_membership_suspensions_total", "Times that the proxy found that its process had been suspended."),
		scraped.New("pd_membership_orphans", "Instances without their lease that the proxy uses while they answer."),
		scraped.New("pd_membership_held", "Orphans that lost their keys together with many others of their role."),
		scraped.New("pd_membership_kept", "Keys that the present etcd lacks and that stay in effect until pdctl restore or pdctl forget."),
		scraped.New("pd_membership_snapshot_age_seconds", "Age of the membership saved on disk; absent without a saved membership."),
		scraped.New("pd_etcd_embedded_up", "1 while the embedded etcd runs, 0 after it has ended; absent without one."),
		scraped.New("pd_etcd_embedded_ends_total", "Times that the embedded etcd has ended by itself; absent without one."),
	))
}

// read emits the metrics of the membership watch.
func (e Etcd) read(emit scraped.Emit) {
	for _, s := range watch.States() {
		emit("pd_membership_state", scraped.Truth(s == e.State), string(s))
	}
	emit("pd_membership_live", scraped.Truth(e.State == watch.Live))
	emit("pd_membership_audits_total", float64(e.Audits), "ok")
	emit("pd_membership_audits_total", float64(e.AuditErrors), "error")
	emit("pd_membership_drift_total", float64(e.Drift))
	emit("pd_membership_epochs_total", float64(e.Epochs))
	emit("pd_membership_relists_total", float64(max(e.Lists-1, 0)))
	emit("pd_membership_suspensions_total", float64(e.Suspensions))
	emit("pd_membership_orphans", float64(e.Orphans))
	emit("pd_membership_held", float64(e.Held))
	emit("pd_membership_kept", float64(len(e.Kept)))
	if e.Own {
		emit("pd_etcd_embedded_up", scraped.Truth(e.OwnRuns))
		emit("pd_etcd_embedded_ends_total", float64(e.OwnEnds))
	}
	if !e.Saved.IsZero() {
		emit("pd_membership_snapshot_age_seconds", time.Since(e.Saved).Seconds())
	}
}

func (m Membership) read(emit scraped.Emit) {
	s := m.Snapshot()
	emit("pd_membership_revision", float64(s.Revision))
	if ready, known := m.Ready(); known {
		emit("pd_ready", scraped.Truth(ready))
	}
	type kind struct {
		role instance.Role
		view string
	}
	counts := map[kind]int{{instance.Prefill, "serving"}: 0, {instance.Decode, "serving"}: 0}
	for _, in := range s.All() {
		counts[kind{in.Role, m.view(in)}]++
	}
	for k, n := range counts {
		emit("pd_membership_instances", float64(n), string(k.role), k.view)
	}
	m.InFlight(func(k instance.Key, n int64) {
		emit("pd_instance_in_flight", float64(n), string(k.Role), k.Address)
	})
	m.Picked(func(k instance.Key, n uint64) {
		emit("pd_instance_picks_total", float64(n), string(k.Role), k.Address)
	})
	byRole := func(name string) func(role instance.Role, of string, n uint64) {
		return func(role instance.Role, of string, n uint64) { emit(name, float64(n), string(role), of) }
	}
	m.Picks(byRole("pd_picks_total"))
	m.Elsewhere(byRole("pd_picks_elsewhere_total"))
	m.Both(byRole("pd_both_picks_total"))
}

func (m Membership) view(in *instance.Instance) string {
	switch {
	case in.Usable():
		return cmp.Or(string(m.View(in.Key)), "serving")
	case in.View != "":
		return string(in.View)
	case in.Intent != "":
		return string(in.Intent)
	case in.Weight() == 0:
		return "weight_0"
	case in.Record.State == instance.Down:
		return string(instance.Down)
	default:
		return "not_ready"
	}
}

// Hits calls a function for every prefill instance with its prefix cache hits.
type Hits func(func(instance.Key, sched.Hits))

// Register adds the counters.
func (h Hits) Register(reg prometheus.Registerer) {
	const name = "pd_prompt_tokens_total"
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) {
		h(func(k instance.Key, h sched.Hits) {
			emit(name, float64(h.Asked), k.Address, "asked")
			emit(name, float64(h.Expected), k.Address, "expected")
			emit(name, float64(h.Found), k.Address, "found")
		})
	}, scraped.New(name, "Tokens of prompts that a prefill instance has answered: asked (all), expected (in its cache, according to the policy), found (in its cache, according to the engine).", "instance", "what")))
}

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
