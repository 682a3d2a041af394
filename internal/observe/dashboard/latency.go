package dashboard

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// A latency has four buckets for each power of two of its length, in units of 10 µs, so that
// quantiles are exact to about a tenth.
const (
	unit    = 10 * time.Microsecond
	buckets = 4 * 26 // the last one begins beyond 300 s
)

// latency is a histogram of durations without locks.
type latency [buckets]atomic.Uint32

// add counts a duration; 0 means none.
func (l *latency) add(d time.Duration) {
	if d > 0 {
		l[bucket(d)].Add(1)
	}
}

func bucket(d time.Duration) int {
	n := uint64(max(d/unit, 0))
	if n < 4 {
		return int(n)
	}
	shift := bits.Len64(n) - 3 // the two bits after the first one are the quarter
	return min(4*shift+int(n>>shift), buckets-1)
}

// lower returns the lower bound of a bucket.
func lower(i int) time.Duration {
	if i < 4 {
		return time.Duration(i) * unit
	}
	shift := i/4 - 1
	return time.Duration(4+i%4) << shift * unit
}

// counted has the counts of a latency at one moment.
type counted [buckets]uint32

// since updates the counts and returns the differences to the previous ones.
func (c *counted) since(l *latency) (out counted, n uint32) {
	for i := range l {
		is := l[i].Load()
		out[i] = is - c[i]
		c[i] = is
		n += out[i]
	}
	return out, n
}

// quantile returns an estimate of quantile q of n durations in milliseconds, none if n is 0.
func (c *counted) quantile(q float64, n uint32) float32 {
	if n == 0 {
		return none
	}
	rank, below := q*float64(n), 0.0
	for i, k := range c {
		if k == 0 {
			continue
		}
		if below+float64(k) >= rank {
			from, to := lower(i), lower(i+1)
			d := float64(from) + float64(to-from)*(rank-below)/float64(k)
			return float32(d / float64(time.Millisecond))
		}
		below += float64(k)
	}
	return none
}
