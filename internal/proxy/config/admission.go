package config

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
)

// Admission has the settings of the queue in front of the engines.
type Admission struct {
	Queue       string        // an admission.Mode
	QueueLength int           // requests that may wait for one model
	TPOTTarget  time.Duration // time between two tokens of a stream; 0 = none
}

func (q *Admission) settings() settings.Table {
	return settings.About("Queue",
		settings.Setting{Name: "queue", Kind: settings.Text, Takes: string(admission.Off + ", " + admission.Observe + " or " + admission.On), Default: string(admission.Observe), Usage: "keep requests in the proxy while the engines have enough to do, in the order of their priority: off, observe (only count what on would do) or on", Into: &q.Queue},
		settings.Setting{Name: "queue-length", Kind: settings.Number, Takes: "1 to 100000", Default: "5000", Rare: true, Usage: "number of requests that may wait for one model in this proxy; beyond it the newest of the lowest class, of its key with the most, gets 429", Into: &q.QueueLength},
		settings.Setting{Name: "tpot-target", Kind: settings.Time, Takes: "1ms to 10s, or 0 for none", Default: "50ms", Usage: "time per output token up to which decode instances get more streams, as predicted from earlier streams; each may always have 8 streams; 0 means no limit, otherwise 1ms to 10s", Into: &q.TPOTTarget},
	)
}
