package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Membership is what the gauges of the fleet are read from, at scrape time.
type Membership struct {
	Snapshot func() *instance.Snapshot
	// InFlight calls back for every instance with what this proxy holds on it.
	InFlight func(func(instance.Key, int64))
	// Available tells this proxy's own opinion of an instance.
	Available func(instance.Key) bool
	// EtcdLive tells whether the membership is being followed.
	EtcdLive func() bool
}

// Register adds the gauges of the fleet.
func (m Membership) Register(reg prometheus.Registerer) {
	reg.MustRegister(fleet{m: m, desc: newDescs()})
}

type descs struct {
	revision, live, instances, inFlight *prometheus.Desc
}

func newDescs() descs {
	return descs{
		revision: prometheus.NewDesc("pd_membership_revision",
			"etcd revision up to which the membership is known.", nil, nil),
		live: prometheus.NewDesc("pd_membership_live",
			"1 while etcd is being followed, 0 while the last known membership is served.", nil, nil),
		instances: prometheus.NewDesc("pd_membership_instances",
			"Instances by role and view; view is serving, not_ready, or what /status shows.", []string{"role", "view"}, nil),
		inFlight: prometheus.NewDesc("pd_instance_in_flight",
			"Legs that this proxy has open on an instance.", []string{"role", "instance"}, nil),
	}
}

// fleet reads the membership when it is scraped, so that instances which are
// gone leave no series behind.
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
}

// Collect implements prometheus.Collector.
func (f fleet) Collect(ch chan<- prometheus.Metric) {
	s := f.m.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(f.desc.revision, float64(s.Revision))
	live := 0.0
	if f.m.EtcdLive() {
		live = 1
	}
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
}

func (f fleet) view(in *instance.Instance) string {
	switch {
	case in.Usable() && !f.m.Available(in.Key):
		return string(instance.Ejected)
	case in.Usable():
		return "serving"
	case in.View != "":
		return string(in.View)
	case in.Intent != "":
		return string(in.Intent)
	default:
		return "not_ready"
	}
}
