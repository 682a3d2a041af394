// Package histogram counts durations by bounds, in few instructions and without a lock. It
// exists besides client_golang's histograms for what is counted once for each token: a
// stream counts for itself (Local) and adds its counts now and then.
package histogram

import (
	"sync/atomic"
	"time"
)

// Most is how many bounds there can be.
const Most = 24

// Bounds are the upper ends of the buckets, in order, each of them part of its bucket.
// What is larger than the last is in one more bucket.
type Bounds []time.Duration

// bucket finds where d belongs.
func (b Bounds) bucket(d time.Duration) int {
	for i, end := range b {
		if d <= end {
			return i
		}
	}
	return len(b)
}

// Histogram counts for all. It is safe for concurrent use.
type Histogram struct {
	bounds Bounds
	n      [Most + 1]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

// New makes one. There can be Most bounds.
func New(b Bounds) *Histogram {
	if len(b) > Most {
		panic("histogram: too many bounds")
	}
	return &Histogram{bounds: b}
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	h.n[h.bounds.bucket(d)].Add(1)
	h.sum.Add(int64(d))
}

// Read adds what has been counted so far to c, which may hold others' counts of the
// same bounds.
func (h *Histogram) Read(c *Counts) {
	for i := range c.N {
		c.N[i] += h.n[i].Load()
	}
	c.Sum += time.Duration(h.sum.Load())
}

// Counts are what a histogram has counted up to one moment.
type Counts struct {
	N   [Most + 1]uint64 // of each bucket, without the lower ones
	Sum time.Duration
}

// Total is how many durations were counted.
func (c *Counts) Total() (n uint64) {
	for _, k := range c.N {
		n += k
	}
	return n
}

// every is after how many durations a Local adds what it has: a stream of hours is
// seen while it runs.
const every = 256

// Local counts for one goroutine, and adds to a Histogram that others count into as
// well.
type Local struct {
	to      *Histogram
	n       [Most + 1]uint32
	sum     time.Duration
	pending int
}

// For makes the counts go to h. Without a histogram Observe must not be called.
func (l *Local) For(h *Histogram) { l.to = h }

// On reports whether there is a histogram to count for.
func (l *Local) On() bool { return l.to != nil }

// Observe counts d, and zero for each of the others that came along with it.
func (l *Local) Observe(d time.Duration, others int) {
	l.n[l.to.bounds.bucket(d)]++
	l.n[0] += uint32(others)
	l.sum += d
	if l.pending += 1 + others; l.pending >= every {
		l.Flush()
	}
}

// Flush adds what has been counted since the last time.
func (l *Local) Flush() {
	if l.pending == 0 {
		return
	}
	for i := range len(l.to.bounds) + 1 {
		if n := l.n[i]; n > 0 {
			l.to.n[i].Add(uint64(n))
			l.n[i] = 0
		}
	}
	l.to.sum.Add(int64(l.sum))
	l.sum, l.pending = 0, 0
}
