// Package metrics is the page /metrics, under vLLM's names.
package metrics

import (
	"sync/atomic"
	"time"
)

// Histogram counts seconds in the buckets below; safe for concurrent use.
type Histogram struct {
	buckets [bucketCount + 1]atomic.Int64
	micros  atomic.Int64
}

const bucketCount = 21

// bucketBounds are the upper bounds in seconds.
func bucketBounds() [bucketCount]float64 {
	return [...]float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640}
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	s, bounds := d.Seconds(), bucketBounds()
	i := 0
	for i < len(bounds) && s > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.micros.Add(d.Microseconds())
}

// Stats are the metrics of one life, under vLLM's names.
type Stats struct {
	PromptTokens, GenerationTokens atomic.Int64
	CacheQueries, CacheHits        atomic.Int64
	Stop, Length, Abort, Fail      atomic.Int64
	TTFT, ITL, E2E, Queue          Histogram
	Prefill, Decode                Histogram
}
