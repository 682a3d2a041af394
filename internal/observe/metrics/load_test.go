package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// TestIndexMemory: the memory of the indexes and its limit are exported even without a prompt.
func TestIndexMemory(t *testing.T) {
	t.Parallel()
	memory := indexmem.New(1000)
	memory.Add(indexmem.Blocks, 7)
	reg := prometheus.NewPedanticRegistry()
	metrics.Load{
		Each: func(func(instance.Key, sched.Total)) {}, EachRank: func(func(instance.Key, int, sched.RankLoad)) {},
		Remembered: func() map[instance.Role]policy.Remembered { return nil }, Digests: func() metrics.Digests { return metrics.Digests{} }, Memory: memory,
	}.Register(reg)
	check(t, gathered(t, reg), map[string]float64{
		"pd_index_memory_bytes prompts": 0, "pd_index_memory_bytes kv_blocks": 7, "pd_index_memory_limit_bytes": 1000,
		"pd_index_memory_evicted_bytes_total prompts": 0, "pd_index_memory_evicted_bytes_total kv_blocks": 0,
	})
}

// With limited models, queues with waiting requests get series first, then those of used models.
func TestQueues_LimitedModels(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	metrics.NewQueue(reg, func() []instance.ListedQueue {
		return []instance.ListedQueue{{Model: "a", Share: 0.5}, {Model: "m", Share: 1, Samples: 9}, {Model: "z", Bytes: 4, Waiting: map[string]int{"batch": 1}}}
	}, 2)
	check(t, gathered(t, reg), map[string]float64{"pd_queue_bytes z": 4, "pd_queue_length batch z": 1, "pd_queue_share m": 1, "pd_queue_share other": 0.5})
}

// Model names that are truncated to the same label do not break a scrape.
func TestModelsWithTheSameLabel(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	long := strings.Repeat("x", 300)
	metrics.NewQueue(reg, func() []instance.ListedQueue {
		return []instance.ListedQueue{{Model: long + "1", Bytes: 6}, {Model: long + "2", Bytes: 5}, {Model: "other", Bytes: 4}, {Model: "m", Bytes: 3}}
	}, 3)
	advice := func(model string) instance.Advice {
		return instance.Advice{Model: model, Role: instance.Decode, Known: true}
	}
	metrics.Roles{
		Advice: func() []instance.Advice { return []instance.Advice{advice(long + "1"), advice(long + "2")} },
		Moves:  func(func(instance.Role, string, int64)) {}, Limit: 9,
	}.Register(reg)
	check(t, gathered(t, reg), map[string]float64{"pd_queue_bytes other": 4, "pd_queue_bytes " + instance.Printable(long, 200): 6})
}
