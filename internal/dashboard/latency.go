package dashboard

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// A latency falls into one of four buckets for each power of two of its length, counted
// in units of 10 µs: what is read of them is right to about a tenth.
const (
	unit    = 10 * time.Microsecond
	buckets = 4 * 26 // the last one begins beyond 300 s
)

// latency counts durations. Requests add to it without waiting for anybody.
type latency [buckets]atomic.Uint32

// add counts one; 0 represents none.
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
	shift := bits.Len64(n) - 3 // two bits behind the first one tell the quarter
	return min(4*shift+int(n>>shift), buckets-1)
}

// lower is the least duration of a bucket.
func lower(i int) time.Duration {
	if i < 4 {
		return time.Duration(i) * unit
	}
	shift := i/4 - 1
	return time.Duration(4+i%4) << shift * unit
}

// counted are the counts of a latency at one moment.
type counted [buckets]uint32

// since moves the counts to the present and returns what has come in between.
func (c *counted) since(l *latency) (out counted, n uint32) {
	for i := range l {
		is := l[i].Load()
		out[i] = is - c[i]
		c[i] = is
		n += out[i]
	}
	return out, n
}

// quantile estimates, in milliseconds, what the share q of n durations does not exceed;
// none of nothing.
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
