package proxy

import (
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/dashboard"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// recorder hands every finished request to the counters, the access log and the dashboard.
type recorder struct {
	*metrics.Metrics
	noticed *notice.Counts
	access  *forward.AccessLog      // nil: off
	log     *logrus.Logger          // whose level applies to access, too
	board   func() *dashboard.Board // nil: off
}

// newAccessLog returns nil with --access-log off. Its lines go to the output of the log:
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
	r.noticed.Done(e)
	if r.access != nil && r.log.IsLevelEnabled(logrus.InfoLevel) {
		r.access.Write(e)
	}
	if b := r.board(); b != nil {
		b.Done(sample(e))
	}
}

// Handed implements forward.Recorder.
func (r recorder) Handed(in *instance.Instance, something bool) {
	r.Metrics.Handed(in, something)
	r.noticed.Handed(in, something)
}
