package control

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// CertificateProblems returns the metric of problems with certificates.
func CertificateProblems(certs func() []string) prometheus.Collector {
	const name = "pd_agent_certificate_problems"
	return scraped.Collector(func(emit scraped.Emit) { emit(name, float64(len(certs()))) },
		scraped.New(name, "Certificate files that are rejected, not valid now, or valid for less than a week."))
}

// MetricsHandler returns a handler that serves metrics. It calls report for each scrape.
func MetricsHandler(report func() agentctl.Report, certs func() []string) http.Handler {
	return scraped.Handler(scraped.Collector(func(emit scraped.Emit) { emitMetrics(emit, report()) },
		scraped.New("pd_agent_info", "Always 1; the instance and the agent's version are in the labels.", "role", "instance", "version"),
		scraped.New("pd_agent_phase", "1 for the present phase of the agent, 0 for the others.", "phase"),
		scraped.New("pd_agent_registration_phase", "1 for the present phase of the registration in etcd, 0 for the others.", "phase"),
		scraped.New("pd_agent_engine_up", "1 while the engine answers its probes correctly, else 0."),
		scraped.New("pd_agent_lease_renewals_total", "Renewals of the lease that etcd confirmed."),
		scraped.New("pd_agent_lease_renewal_failures_total", "Renewals that etcd did not confirm in time; the same lease is tried again."),
		scraped.New("pd_agent_leases_lost_total", "Leases that had ended in etcd while the agent was running."),
		scraped.New("pd_agent_registrations_total", "Times that the key was written under a new lease."),
		scraped.New("pd_agent_registration_conflicts_total", "Times that another agent had the key."),
		scraped.New("pd_agent_engine_starts_total", "Times that the agent has started the engine; absent if the agent does not start it."),
		scraped.New("pd_agent_lease_last_renewal_age_seconds", "Time since etcd last confirmed the lease; absent before the first time."),
	), CertificateProblems(certs))
}

// emitMetrics emits the metrics of a report, with a series for every phase, as alerts expect.
func emitMetrics(emit scraped.Emit, r agentctl.Report) {
	emit("pd_agent_info", 1, string(r.Role), r.Address, r.Version)
	for _, p := range []agent.Phase{agent.Probing, agent.Registering, agent.Serving, agent.Down, agent.Draining, agent.Gone, agent.Restarting} {
		emit("pd_agent_phase", scraped.Truth(string(p) == r.Phase), string(p))
	}
	for _, p := range []lease.Phase{
		lease.Idle, lease.Registering, lease.Registered, lease.Unknown,
		lease.Conflict, lease.Overridden, lease.StaticPresent,
	} {
		emit("pd_agent_registration_phase", scraped.Truth(string(p) == r.Registration.Phase), string(p))
	}
	emit("pd_agent_engine_up", scraped.Truth(r.Reason == "" && r.State != ""))
	emit("pd_agent_lease_renewals_total", float64(r.Registration.Renewals))
	emit("pd_agent_lease_renewal_failures_total", float64(r.Registration.RenewalFails))
	emit("pd_agent_leases_lost_total", float64(r.Registration.LeasesLost))
	emit("pd_agent_registrations_total", float64(r.Registration.Registrations))
	emit("pd_agent_registration_conflicts_total", float64(r.Registration.Conflicts))
	if r.Process != nil {
		emit("pd_agent_engine_starts_total", float64(r.Process.Starts))
	}
	if t := r.Registration.LastRenewal; t != nil {
		emit("pd_agent_lease_last_renewal_age_seconds", time.Since(*t).Seconds())
	}
}
