package loadgen

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	subBits    = 6 // 64 buckets per power of two: relative error below 1.6 %
	subBuckets = 1 << subBits
	buckets    = (64 - subBits) * subBuckets
)

// Histogram counts durations in buckets of equal relative width. The zero value
// is ready; all methods may be called from several goroutines.
type Histogram struct {
	counts [buckets]atomic.Uint64
	n      atomic.Uint64
	max    atomic.Uint64
}

func bucketOf(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

// upperBound returns the largest value in a bucket.
func upperBound(b int) uint64 {
	if b < subBuckets {
		return uint64(b)
	}
	shift := b/subBuckets - 1
	return (uint64(b%subBuckets+subBuckets)+1)<<shift - 1
}

// Record counts d; a negative d counts as 0.
func (h *Histogram) Record(d time.Duration) {
	v := uint64(max(d, 0))
	h.counts[bucketOf(v)].Add(1)
	h.n.Add(1)
	for {
		old := h.max.Load()
		if v <= old || h.max.CompareAndSwap(old, v) {
			return
		}
	}
}

// Count returns the number of durations.
func (h *Histogram) Count() uint64 { return h.n.Load() }

// Max returns the exact longest duration.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// Quantile returns the q-quantile (q from 0 to 1) of the durations, at most 1.6 %
// above the exact one; 0 without any duration.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.n.Load()
	if n == 0 {
		return 0
	}
	rank := uint64(q * float64(n))
	if float64(rank) < q*float64(n) {
		rank++
	}
	rank = min(max(rank, 1), n)
	var seen uint64
	for b := range h.counts {
		if seen += h.counts[b].Load(); seen >= rank {
			return min(time.Duration(upperBound(b)), h.Max())
		}
	}
	return h.Max()
}
