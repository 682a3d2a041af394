// Package agentmetrics exports an agent's registration to Prometheus. It is separate from package
// metrics so that an agent does not link the proxy's packages.
package agentmetrics

import (
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// Phases are every value that the label phase may have. A series of each is
// always there, so that an alert need not guess which ones exist.
type Phases struct {
	Agent, Registration []string
}

// Handler serves what report says at the moment of the scrape.
func Handler(report func() agentctl.Report, phases Phases) http.Handler {
	return scraped.Handler(scraped.Collector(func(emit scraped.Emit) { read(emit, report(), phases) },
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
	))
}

func read(emit scraped.Emit, r agentctl.Report, phases Phases) {
	emit("pd_agent_info", 1, string(r.Role), r.Address, r.Version)
	for _, p := range phases.Agent {
		emit("pd_agent_phase", scraped.Truth(p == r.Phase), p)
	}
	for _, p := range phases.Registration {
		emit("pd_agent_registration_phase", scraped.Truth(p == r.Registration.Phase), p)
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
