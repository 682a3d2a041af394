package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// TLS is the source of the metrics about certificates, read at scrape time.
type TLS struct {
	Sources func() []certs.Status
	Refused func() map[certs.Reason]int64 // clients' handshakes
}

// Register registers the metrics.
func (t TLS) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(t.read,
		scraped.New("pd_tls_certificate_expiry_timestamp_seconds", "Expiry of the active certificate or its CA certificate, whichever ends first; use is listener, engines, etcd or etcd_listener.", "use"),
		scraped.New("pd_tls_files_rejected", "1 while changed certificate files are rejected and the previous certificate stays active.", "use"),
		scraped.New("pd_tls_reloads_total", "Times that changed certificate files were loaded.", "use"),
		scraped.New("pd_tls_handshakes_failed_total", "TLS handshakes of clients that failed, by reason.", "reason"),
	))
}

func (t TLS) read(emit scraped.Emit) {
	for _, s := range t.Sources() {
		if !s.NotAfter.IsZero() {
			emit("pd_tls_certificate_expiry_timestamp_seconds", float64(s.NotAfter.Unix()), s.Use)
		}
		emit("pd_tls_files_rejected", scraped.Truth(s.Problem != ""), s.Use)
		emit("pd_tls_reloads_total", float64(s.Reloads), s.Use)
	}
	for reason, n := range t.Refused() {
		emit("pd_tls_handshakes_failed_total", float64(n), string(reason))
	}
}
