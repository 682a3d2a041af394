package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
)

// KVEvents is the source of the metrics of KV events, which are read when they are scraped. Their labels
// are bounded by the membership: an engine that has left has no series.
type KVEvents struct {
	Status func() []kvfollow.Status
	// Queue returns the bytes of events that wait to be applied, their limit, and the number
	// of messages dropped because of it.
	Queue func() (used, limit int64, dropped uint64)
}

// Register registers the metrics.
func (k KVEvents) Register(reg prometheus.Registerer) {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("pd_kv_events_"+name, help, append([]string{"instance", "rank"}, more...), nil)
	}
	reg.MustRegister(kvEvents{
		k:        k,
		followed: desc("followed", "1 while the proxy follows the KV events of a rank, else 0."),
		blocks:   desc("blocks", "Blocks in the KV cache of a rank, according to its events."),
		batches:  desc("batches_total", "Batches of KV events received, including replayed ones."),
		lag:      desc("lag_seconds", "Age of the last batch when the proxy applied it, by the clocks of engine and proxy."),
		trouble:  desc("trouble_total", "Problems with KV events: gap, replay, reset, bad, orphan, full.", "what"),
		queued:   prometheus.NewDesc("pd_kv_events_queue_bytes", "Memory of the KV events that wait to be applied, of all engines.", nil, nil),
		limit:    prometheus.NewDesc("pd_kv_events_queue_limit_bytes", "Limit for this memory.", nil, nil),
		dropped:  prometheus.NewDesc("pd_kv_events_queue_dropped_total", "Messages of KV events that were dropped because this memory was used up; the proxy asks for them again.", nil, nil),
	})
}

type kvEvents struct {
	k                                       KVEvents
	followed, blocks, batches, lag, trouble *prometheus.Desc
	queued, limit, dropped                  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c kvEvents) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.followed, c.blocks, c.batches, c.lag, c.trouble, c.queued, c.limit, c.dropped} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c kvEvents) Collect(ch chan<- prometheus.Metric) {
	used, limit, dropped := c.k.Queue()
	ch <- prometheus.MustNewConstMetric(c.queued, prometheus.GaugeValue, float64(used))
	ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(limit))
	ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(dropped))
	for _, s := range c.k.Status() {
		labels := []string{s.Address, strconv.Itoa(s.Rank)}
		followed := 0.0
		if s.Index.Live {
			followed = 1
		}
		ch <- prometheus.MustNewConstMetric(c.followed, prometheus.GaugeValue, followed, labels...)
		ch <- prometheus.MustNewConstMetric(c.blocks, prometheus.GaugeValue, float64(s.Index.Blocks), labels...)
		ch <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, s.Lag.Seconds(), labels...)
		ch <- prometheus.MustNewConstMetric(c.batches, prometheus.CounterValue, float64(s.Batches), labels...)
		for what, n := range map[string]uint64{
			"gap": s.Gaps, "replay": s.Replays, "reset": s.Resets, "bad": s.Bad, "orphan": s.Index.Orphans, "full": s.Index.Full,
		} {
			ch <- prometheus.MustNewConstMetric(c.trouble, prometheus.CounterValue, float64(n), append(labels[:2:2], what)...)
		}
	}
}
