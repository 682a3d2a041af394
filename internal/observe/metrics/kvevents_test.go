package metrics_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
)

func TestKVEvents(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	metrics.KVEvents{Status: func() []kvfollow.Status {
		return []kvfollow.Status{
			{
				Address: "a:1", Rank: 1, Index: kvindex.Stats{Live: true, Blocks: 5, Orphans: 2, Full: 6},
				Status: kvevents.Status{Batches: 7, Gaps: 3, Replays: 4, Resets: 8, Bad: 9, Lag: 500 * time.Millisecond},
			},
			{Address: "b:1", Status: kvevents.Status{State: kvevents.Lost}},
		}
	}, Queue: func() (int64, int64, uint64) { return 10, 11, 12 }}.Register(reg)
	got := gathered(t, reg)
	check(t, got, map[string]float64{
		"pd_kv_events_followed a:1 1": 1, "pd_kv_events_followed b:1 0": 0, "pd_kv_events_blocks a:1 1": 5,
		"pd_kv_events_batches_total a:1 1": 7, "pd_kv_events_lag_seconds a:1 1": 0.5,
		"pd_kv_events_trouble_total a:1 1 gap": 3, "pd_kv_events_trouble_total a:1 1 replay": 4, "pd_kv_events_trouble_total a:1 1 reset": 8,
		"pd_kv_events_trouble_total a:1 1 bad": 9, "pd_kv_events_trouble_total a:1 1 orphan": 2, "pd_kv_events_trouble_total a:1 1 full": 6,
		"pd_kv_events_queue_bytes": 10, "pd_kv_events_queue_limit_bytes": 11, "pd_kv_events_queue_dropped_total": 12,
	})
	assert.Len(t, got, 23, "values")
}
