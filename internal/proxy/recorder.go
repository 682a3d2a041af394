package proxy

import (
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// recorder passes every finished request to the counters, the notices and the access log.
type recorder struct {
	*metrics.Metrics
	p *app // has the notices and the access log
}

// newAccessLog returns the access log, or nil with --access-log off. It writes to the output of log: a
// logging.Queue, which never blocks.
func newAccessLog(cfg *config.Proxy, log *logrus.Logger) *forward.AccessLog {
	if !cfg.AccessLog {
		return nil
	}
	return forward.NewAccessLog(log.Out, cfg.LogFormat)
}

// Done implements forward.Recorder.
func (r recorder) Done(e *forward.Entry) {
	r.Metrics.Done(e)
	r.p.noticed.Done(e)
	if r.p.access != nil && r.p.log.IsLevelEnabled(logrus.InfoLevel) {
		r.p.access.Write(e)
	}
}

// Handed implements forward.Recorder.
func (r recorder) Handed(in *instance.Instance, something bool) {
	r.Metrics.Handed(in, something)
	r.p.noticed.Handed(in, something)
}

// Failed implements forward.Recorder.
func (r recorder) Failed(k instance.Key, class leg.Class) {
	r.Metrics.Failed(k, class)
	r.p.noticed.Failed(k, class)
}
