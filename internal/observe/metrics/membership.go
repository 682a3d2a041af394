package metrics

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// Membership is the source of the metrics about the fleet, read at scrape time.
type Membership struct {
	Snapshot func() *instance.Snapshot
	// InFlight calls a function for every instance with this proxy's load on it.
	InFlight func(func(instance.Key, int64))
	// Picks calls a function for every policy of a role with the number of its picks.
	Picks func(func(role instance.Role, policy string, n uint64))
	// Elsewhere calls a function for each role and reason with the number of picks that
	// deviated from their session or zone.
	Elsewhere func(func(role instance.Role, reason string, n uint64))
	// Both calls a function for each role and reason with the number of picks of engines
	// in both roles.
	Both func(func(role instance.Role, reason string, n uint64))
	// Hits calls a function for every prefill instance with its prefix cache hits.
	Hits func(func(instance.Key, sched.Hits))
	// View returns this proxy's view of an instance, "" for one that may be picked.
	View func(instance.Key) instance.View
	// Etcd returns the state of the membership watch.
	Etcd func() Etcd
}

// Etcd is the state of the membership watch.
type Etcd struct {
	State  string   // one of States
	States []string // all possible states
	// Counters since the start of the process.
	Audits, AuditErrors, Drift, Epochs, Relists, Suspensions int64
	Orphans, Held, Kept                                      int
	// Saved is the time of the snapshot on disk; zero if there is none.
	Saved time.Time
	// Own reports whether the proxy has an embedded etcd, OwnRuns whether it is running.
	// OwnEnds is the number of its unexpected exits.
	Own, OwnRuns bool
	OwnEnds      int64
}

// Register adds the gauges of the fleet.
func (m Membership) Register(reg prometheus.Registerer) {
	reg.MustRegister(fleet{m: m, desc: newDescs()})
}

type descs struct {
	revision, live, instances, inFlight, picks, both, elsewhere *prometheus.Desc
	state, audits, drift, epochs, relists, suspended            *prometheus.Desc
	orphans, held, kept, age                                    *prometheus.Desc
	own, ownEnds                                                *prometheus.Desc
	hits                                                        *prometheus.Desc
}

func newDescs() descs {
	return descs{
		revision: prometheus.NewDesc("pd_membership_revision",
			"etcd revision of the membership that the proxy knows.", nil, nil),
		live: prometheus.NewDesc("pd_membership_live",
			"1 while the proxy follows etcd, 0 while it uses the last known membership.", nil, nil),
		instances: prometheus.NewDesc("pd_membership_instances",
			"Instances by role and view; view is serving, down, not_ready, weight_0, or what /status shows.", []string{"role", "view"}, nil),
		inFlight: prometheus.NewDesc("pd_instance_in_flight",
			"Legs that this proxy has open on an instance; an engine in both roles has all of its legs with each role.", []string{"role", "instance"}, nil),
		picks: prometheus.NewDesc("pd_picks_total",
			"Instances picked for legs, by role and by the policy that picked.", []string{"role", "policy"}, nil),
		elsewhere: prometheus.NewDesc("pd_picks_elsewhere_total",
			"Picks of an instance other than that of the session, or outside the zone, by reason.", []string{"role", "reason"}, nil),
		both: prometheus.NewDesc("pd_both_picks_total",
			"Picks of an engine in both roles, by reason: chosen (others could be picked), or no_other.", []string{"role", "reason"}, nil),
		hits: prometheus.NewDesc("pd_prompt_tokens_total",
			"Tokens of prompts that a prefill instance has answered: asked (all), expected (in its cache, according to the policy), found (in its cache, according to the engine).", []string{"instance", "what"}, nil),
		state: prometheus.NewDesc("pd_membership_state",
			"1 for the present state of the membership, 0 for the others.", []string{"state"}, nil),
		audits: prometheus.NewDesc("pd_membership_audits_total",
			"Comparisons of all keys in etcd with the events of the watch, by result (ok, error).", []string{"result"}, nil),
		drift: prometheus.NewDesc("pd_membership_drift_total",
			"Audits that found a change that the watch had missed.", nil, nil),
		epochs: prometheus.NewDesc("pd_membership_epochs_total",
			"Times that etcd was found to be another store than before.", nil, nil),
		relists: prometheus.NewDesc("pd_membership_relists_total",
			"Lists of the whole membership, without the first.", nil, nil),
		suspended: prometheus.NewDesc("pd_membership_suspensions_total",
			"Times that the proxy found that its process had been suspended.", nil, nil),
		orphans: prometheus.NewDesc("pd_membership_orphans",
			"Instances without their lease that the proxy uses while they answer.", nil, nil),
		held: prometheus.NewDesc("pd_membership_held",
			"Orphans that lost their keys together with many others of their role.", nil, nil),
		kept: prometheus.NewDesc("pd_membership_kept",
			"Keys that the present etcd lacks and that stay in effect until pdctl restore or pdctl forget.", nil, nil),
		age: prometheus.NewDesc("pd_membership_snapshot_age_seconds",
			"Age of the membership saved on disk; absent without a saved membership.", nil, nil),
		own: prometheus.NewDesc("pd_etcd_embedded_up",
			"1 while the embedded etcd runs, 0 after it has ended; absent without one.", nil, nil),
		ownEnds: prometheus.NewDesc("pd_etcd_embedded_ends_total",
			"Times that the embedded etcd has ended by itself; absent without one.", nil, nil),
	}
}

// fleet reads the membership at each scrape, so that instances which have left have no series.
type fleet struct {
	m    Membership
	desc descs
}

// Describe implements prometheus.Collector.
func (f fleet) Describe(ch chan<- *prometheus.Desc) {
	ch <- f.desc.revision
	ch <- f.desc.live
	ch <- f.desc.instances
	ch <- f.desc.inFlight
	ch <- f.desc.picks
	ch <- f.desc.both
	ch <- f.desc.elsewhere
	ch <- f.desc.hits
	d := f.desc
	for _, desc := range []*prometheus.Desc{d.state, d.audits, d.drift, d.epochs, d.relists, d.suspended, d.orphans, d.held, d.kept, d.age, d.own, d.ownEnds} {
		ch <- desc
	}
}

// collectEtcd collects the metrics of the membership watch.
func (f fleet) collectEtcd(ch chan<- prometheus.Metric, e Etcd) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, s := range e.States {
		v := 0.0
		if s == e.State {
			v = 1
		}
		gauge(f.desc.state, v, s)
	}
	count(f.desc.audits, e.Audits, "ok")
	count(f.desc.audits, e.AuditErrors, "error")
	count(f.desc.drift, e.Drift)
	count(f.desc.epochs, e.Epochs)
	count(f.desc.relists, e.Relists)
	count(f.desc.suspended, e.Suspensions)
	gauge(f.desc.orphans, float64(e.Orphans))
	gauge(f.desc.held, float64(e.Held))
	gauge(f.desc.kept, float64(e.Kept))
	if e.Own {
		up := 0.0
		if e.OwnRuns {
			up = 1
		}
		gauge(f.desc.own, up)
		count(f.desc.ownEnds, e.OwnEnds)
	}
	if !e.Saved.IsZero() {
		gauge(f.desc.age, time.Since(e.Saved).Seconds())
	}
}

// Collect implements prometheus.Collector.
func (f fleet) Collect(ch chan<- prometheus.Metric) {
	s := f.m.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(f.desc.revision, float64(s.Revision))
	etcd := f.m.Etcd()
	live := 0.0
	if etcd.State == "live" {
		live = 1
	}
	f.collectEtcd(ch, etcd)
	gauge(f.desc.live, live)
	type kind struct {
		role instance.Role
		view string
	}
	counts := map[kind]int{{instance.Prefill, "serving"}: 0, {instance.Decode, "serving"}: 0}
	for _, in := range s.All() {
		counts[kind{in.Role, f.view(in)}]++
	}
	for k, n := range counts {
		gauge(f.desc.instances, float64(n), string(k.role), k.view)
	}
	f.m.InFlight(func(k instance.Key, n int64) {
		gauge(f.desc.inFlight, float64(n), string(k.Role), k.Address)
	})
	f.m.Picks(func(role instance.Role, policy string, n uint64) {
		ch <- prometheus.MustNewConstMetric(f.desc.picks, prometheus.CounterValue, float64(n), string(role), policy)
	})
	f.m.Hits(func(k instance.Key, h sched.Hits) {
		for what, n := range map[string]int64{"asked": h.Asked, "expected": h.Expected, "found": h.Found} {
			ch <- prometheus.MustNewConstMetric(f.desc.hits, prometheus.CounterValue, float64(n), k.Address, what)
		}
	})
	f.m.Elsewhere(func(role instance.Role, reason string, n uint64) {
		ch <- prometheus.MustNewConstMetric(f.desc.elsewhere, prometheus.CounterValue, float64(n), string(role), reason)
	})
	f.m.Both(func(role instance.Role, reason string, n uint64) {
		ch <- prometheus.MustNewConstMetric(f.desc.both, prometheus.CounterValue, float64(n), string(role), reason)
	})
}

func (f fleet) view(in *instance.Instance) string {
	switch {
	case in.Usable():
		return cmp.Or(string(f.m.View(in.Key)), "serving")
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
