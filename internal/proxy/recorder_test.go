package proxy

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The access log has lines while the log level is info or more verbose.
func TestAccessLogFollowsLevel(t *testing.T) {
	t.Parallel()
	var out testkit.Buffer
	log, err := logging.New(&out, "warn", logging.FormatText)
	require.NoError(t, err)
	cfg := &config.Proxy{}
	cfg.AccessLog = true
	r := recorder{metrics.New(prometheus.NewRegistry(), "", 0), &app{
		noticed: notice.NewCounts(func() *instance.Snapshot { return instance.NewSnapshot(1, nil) }), access: newAccessLog(cfg, log), log: log,
	}}
	level := logging.NewLevel(log)
	for i, step := range []struct{ level, want string }{{"warn", ""}, {"info", "msg=request"}, {"debug", "msg=request"}, {"error", ""}} {
		require.NoError(t, level.Set(step.level))
		n := len(out.String())
		r.Done(&forward.Entry{Result: relay.Result{Outcome: relay.OutcomeOK}})
		if got := out.String()[n:]; (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("step %d, level %s: %q", i, step.level, got)
		}
	}
}
