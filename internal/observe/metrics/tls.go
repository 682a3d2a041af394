package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// TLS is the source of the metrics about certificates, read at scrape time.
type TLS struct {
	Sources func() []certs.Status
	Refused func() map[certs.Reason]int64 // clients' handshakes
}

// Register registers the metrics.
func (t TLS) Register(reg prometheus.Registerer) {
	desc := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc("pd_tls_"+name, help, []string{label}, nil)
	}
	reg.MustRegister(secured{
		t:       t,
		expiry:  desc("certificate_expiry_timestamp_seconds", "Expiry of the active certificate; use is listener, engines, etcd or etcd_listener.", "use"),
		stale:   desc("files_rejected", "1 while changed certificate files are rejected and the previous certificate stays active.", "use"),
		reloads: desc("reloads_total", "Times that changed certificate files were loaded.", "use"),
		refused: desc("handshakes_failed_total", "TLS handshakes of clients that failed, by reason.", "reason"),
	})
}

type secured struct {
	t                               TLS
	expiry, stale, reloads, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c secured) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.expiry, c.stale, c.reloads, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c secured) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.t.Sources() {
		if !s.NotAfter.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, float64(s.NotAfter.Unix()), s.Use)
		}
		stale := 0.0
		if s.Problem != "" {
			stale = 1
		}
		ch <- prometheus.MustNewConstMetric(c.stale, prometheus.GaugeValue, stale, s.Use)
		ch <- prometheus.MustNewConstMetric(c.reloads, prometheus.CounterValue, float64(s.Reloads), s.Use)
	}
	for reason, n := range c.t.Refused() {
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(n), string(reason))
	}
}
