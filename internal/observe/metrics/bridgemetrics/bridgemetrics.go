// Package bridgemetrics exports the counters of a zmqregister.Bridge to Prometheus. It is separate
// from package metrics since agents have a bridge, too.
package bridgemetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// Collector returns a collector of the counts of the registration by ZeroMQ, read at scrape time.
func Collector(counts func() zmqregister.Counts) prometheus.Collector {
	return scraped.Collector(func(emit scraped.Emit) {
		n := counts()
		emit("pd_zmq_register_instances", float64(n.Instances))
		emit("pd_zmq_register_pings_total", float64(n.Pings))
		emit("pd_zmq_register_refused_total", float64(n.Refused))
		emit("pd_zmq_register_registrations_total", float64(n.Registrations))
		emit("pd_zmq_register_lost_total", float64(n.Lost))
	},
		scraped.New("pd_zmq_register_instances", "Engines that are registered because they send pings."),
		scraped.New("pd_zmq_register_pings_total", "Pings of engines that the bridge accepted."),
		scraped.New("pd_zmq_register_refused_total", "Messages that the bridge refused: no ping, or from an engine that it does not register."),
		scraped.New("pd_zmq_register_registrations_total", "Registrations that began with a ping."),
		scraped.New("pd_zmq_register_lost_total", "Registrations that ended because the pings ended, or because the engine returned with other addresses."),
	)
}
