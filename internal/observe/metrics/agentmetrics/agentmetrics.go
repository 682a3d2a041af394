// Package agentmetrics exports an agent's registration to Prometheus. It is separate from package
// metrics so that an agent does not link the proxy's packages.
package agentmetrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
)

// Phases are every value that the label phase may have. A series of each is
// always there, so that an alert need not guess which ones exist.
type Phases struct {
	Agent, Registration []string
}

// Handler serves what report says at the moment of the scrape.
func Handler(report func() agentctl.Report, phases Phases) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collector{report: report, phases: phases, d: newDescs()},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

type descs struct {
	info, phase, registration, engineUp, renewals, failures, lost, registrations, conflicts, age, starts *prometheus.Desc
}

func newDescs() descs {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pd_agent_"+name, help, labels, nil)
	}
	return descs{
		info:          d("info", "Always 1; the instance and the agent's version are in the labels.", "role", "instance", "version"),
		phase:         d("phase", "1 for the present phase of the agent, 0 for the others.", "phase"),
		registration:  d("registration_phase", "1 for the present phase of the registration in etcd, 0 for the others.", "phase"),
		engineUp:      d("engine_up", "1 while the engine answers its probes correctly, else 0."),
		renewals:      d("lease_renewals_total", "Renewals of the lease that etcd confirmed."),
		failures:      d("lease_renewal_failures_total", "Renewals that etcd did not confirm in time; the same lease is tried again."),
		lost:          d("leases_lost_total", "Leases that had ended in etcd while the agent was running."),
		registrations: d("registrations_total", "Times that the key was written under a new lease."),
		conflicts:     d("registration_conflicts_total", "Times that another agent had the key."),
		starts:        d("engine_starts_total", "Times that the agent has started the engine; absent if the agent does not start it."),
		age:           d("lease_last_renewal_age_seconds", "Time since etcd last confirmed the lease; absent before the first time."),
	}
}

type collector struct {
	report func() agentctl.Report
	phases Phases
	d      descs
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.d.info, c.d.phase, c.d.registration, c.d.engineUp, c.d.renewals, c.d.failures, c.d.lost, c.d.registrations, c.d.conflicts, c.d.age, c.d.starts,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	r := c.report()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(c.d.info, 1, string(r.Role), r.Address, r.Version)
	for _, p := range c.phases.Agent {
		gauge(c.d.phase, truth(p == r.Phase), p)
	}
	for _, p := range c.phases.Registration {
		gauge(c.d.registration, truth(p == r.Registration.Phase), p)
	}
	gauge(c.d.engineUp, truth(r.Reason == "" && r.State != ""))
	counter(c.d.renewals, r.Registration.Renewals)
	counter(c.d.failures, r.Registration.RenewalFails)
	counter(c.d.lost, r.Registration.LeasesLost)
	counter(c.d.registrations, r.Registration.Registrations)
	counter(c.d.conflicts, r.Registration.Conflicts)
	if r.Process != nil {
		counter(c.d.starts, r.Process.Starts)
	}
	if t := r.Registration.LastRenewal; t != nil {
		gauge(c.d.age, time.Since(*t).Seconds())
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
