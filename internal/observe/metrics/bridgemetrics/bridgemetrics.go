// Package bridgemetrics exports the counters of a zmqregister.Bridge to Prometheus. It is separate
// from package metrics since agents have a bridge, too.
package bridgemetrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Counts are those of zmqregister.Counts.
type Counts struct{ Instances, Pings, Refused, Registrations, Lost int64 }

// Bridge is what engines do that register themselves by ZeroMQ, read at scrape time.
type Bridge func() Counts

// Handler serves it alone, for an agent.
func (b Bridge) Handler() http.Handler {
	reg := prometheus.NewRegistry()
	b.Register(reg)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

// Register adds it.
func (b Bridge) Register(reg prometheus.Registerer) {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pd_zmq_register_"+name, help, nil, nil)
	}
	reg.MustRegister(collector{
		bridge:    b,
		instances: d("instances", "Engines that are registered because they send pings."),
		counters: [4]*prometheus.Desc{
			d("pings_total", "Pings of engines that the bridge accepted."),
			d("refused_total", "Messages that the bridge refused: no ping, or from an engine that it does not register."),
			d("registrations_total", "Registrations that began with a ping."),
			d("lost_total", "Registrations that ended because the pings ended, or because the engine returned with other addresses."),
		},
	})
}

type collector struct {
	bridge    Bridge
	instances *prometheus.Desc
	counters  [4]*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.instances
	for _, d := range c.counters {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	n := c.bridge()
	ch <- prometheus.MustNewConstMetric(c.instances, prometheus.GaugeValue, float64(n.Instances))
	for i, v := range []int64{n.Pings, n.Refused, n.Registrations, n.Lost} {
		ch <- prometheus.MustNewConstMetric(c.counters[i], prometheus.CounterValue, float64(v))
	}
}
