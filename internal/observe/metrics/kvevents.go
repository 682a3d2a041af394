package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
)

// KVEvents is the source of the metrics of KV events, read at scrape time. Their labels are bounded by the
// membership: an engine that has left has no series.
type KVEvents struct {
	Status func() []kvfollow.Status
	// Queue returns the bytes of events that wait to be applied, their limit, and the number
	// of messages dropped because of it.
	Queue func() (used, limit int64, dropped uint64)
}

// Register registers the metrics.
func (k KVEvents) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(k.read,
		scraped.New("pd_kv_events_followed", "1 while the proxy follows the KV events of a rank, else 0.", "instance", "rank"),
		scraped.New("pd_kv_events_blocks", "Blocks in the KV cache of a rank, according to its events.", "instance", "rank"),
		scraped.New("pd_kv_events_batches_total", "Batches of KV events received, including replayed ones.", "instance", "rank"),
		scraped.New("pd_kv_events_lag_seconds", "Age of the last batch when the proxy applied it, by the clocks of engine and proxy.", "instance", "rank"),
		scraped.New("pd_kv_events_trouble_total", "Problems with KV events: gap, replay, reset, bad, orphan, full.", "instance", "rank", "what"),
		scraped.New("pd_kv_events_queue_bytes", "Memory of the KV events that wait to be applied, of all engines."),
		scraped.New("pd_kv_events_queue_limit_bytes", "Limit for this memory."),
		scraped.New("pd_kv_events_queue_dropped_total", "Messages of KV events that were dropped because this memory was used up; the proxy asks for them again."),
	))
}

func (k KVEvents) read(emit scraped.Emit) {
	used, limit, dropped := k.Queue()
	emit("pd_kv_events_queue_bytes", float64(used))
	emit("pd_kv_events_queue_limit_bytes", float64(limit))
	emit("pd_kv_events_queue_dropped_total", float64(dropped))
	for _, s := range k.Status() {
		rank := strconv.Itoa(s.Rank)
		emit("pd_kv_events_followed", scraped.Truth(s.Index.Live), s.Address, rank)
		emit("pd_kv_events_blocks", float64(s.Index.Blocks), s.Address, rank)
		emit("pd_kv_events_lag_seconds", s.Lag.Seconds(), s.Address, rank)
		emit("pd_kv_events_batches_total", float64(s.Batches), s.Address, rank)
		for what, n := range map[string]uint64{
			"gap": s.Gaps, "replay": s.Replays, "reset": s.Resets, "bad": s.Bad, "orphan": s.Index.Orphans, "full": s.Index.Full,
		} {
			emit("pd_kv_events_trouble_total", float64(n), s.Address, rank, what)
		}
	}
}
