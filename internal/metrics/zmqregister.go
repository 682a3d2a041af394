package metrics

import "github.com/prometheus/client_golang/prometheus"

// ZMQRegister is what engines do that register themselves by ZeroMQ, read at scrape time.
type ZMQRegister struct {
	Counts func() ZMQCounts
}

// ZMQCounts are those of zmqregister.Counts.
type ZMQCounts struct{ Instances, Pings, Refused, Registrations, Lost int64 }

// Register adds them.
func (z ZMQRegister) Register(reg prometheus.Registerer) {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pd_zmq_register_"+name, help, nil, nil)
	}
	reg.MustRegister(zmqRegister{
		z:         z,
		instances: d("instances", "Engines that are registered by their pings."),
		counters: [4]*prometheus.Desc{
			d("pings_total", "Pings of engines that were followed."),
			d("refused_total", "Messages that were not followed: no ping, or of an engine that is not taken."),
			d("registrations_total", "Registrations that a ping began."),
			d("lost_total", "Registrations that ended, because the pings did or the engine came back with other addresses."),
		},
	})
}

type zmqRegister struct {
	z         ZMQRegister
	instances *prometheus.Desc
	counters  [4]*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c zmqRegister) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.instances
	for _, d := range c.counters {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c zmqRegister) Collect(ch chan<- prometheus.Metric) {
	n := c.z.Counts()
	ch <- prometheus.MustNewConstMetric(c.instances, prometheus.GaugeValue, float64(n.Instances))
	for i, v := range []int64{n.Pings, n.Refused, n.Registrations, n.Lost} {
		ch <- prometheus.MustNewConstMetric(c.counters[i], prometheus.CounterValue, float64(v))
	}
}
