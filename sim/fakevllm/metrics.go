package fakevllm

import (
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/metrics"
)

// metrics renders /metrics.
func (l *life) metrics() []byte {
	b := make([]byte, 0, 16<<10)
	for _, c := range l.cores {
		b = metrics.AppendCore(b, l.metricsOf(c))
	}
	return metrics.AppendStart(b, l.started)
}

func (l *life) metricsOf(c *core) *metrics.Core {
	o := &l.server.opt
	pinned, _ := c.ledger.Counts(time.Now())
	if l.transfers != nil {
		pinned, _ = l.transfers.Counts(time.Now())
	}
	usage, blocks := min(1, float64(c.running.Load()+pinned)/256), 65536
	if c.cache != nil {
		held := c.cache.Stats()
		usage, blocks = float64(held.Held)/float64(held.Blocks), held.Blocks
	}
	return &metrics.Core{
		Model: o.Models[0], Rank: c.rank, Running: c.running.Load(), Waiting: c.waiting.Load(), Deferred: l.count.fetching.Load(),
		Usage: usage, BlockSize: o.BlockSize, Blocks: blocks, NIXL: o.Mode == NIXL, Stats: &c.stats,
	}
}
