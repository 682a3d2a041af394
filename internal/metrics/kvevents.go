package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/kvfollow"
)

// KVEvents is what the families about KV events are read from, at scrape time. Their
// labels are bounded by the membership: an engine that has left is not told of.
type KVEvents struct {
	Status func() []kvfollow.Status
}

// Register adds them.
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
	})
}

type kvEvents struct {
	k                                       KVEvents
	followed, blocks, batches, lag, trouble *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c kvEvents) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.followed, c.blocks, c.batches, c.lag, c.trouble} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c kvEvents) Collect(ch chan<- prometheus.Metric) {
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
