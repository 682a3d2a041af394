// Package retrybudget bounds the retries of the whole proxy.
package retrybudget

import (
	"sync"
	"time"
)

// Budget bounds the retries of the whole proxy, so that retries do not multiply the load
// of a sick fleet. It allows a share of the requests of the last seconds, and a burst for
// the moment when an instance with many requests on it is lost. A nil Budget allows all
// retries.
type Budget struct {
	ratio float64
	burst int64
	now   func() time.Time

	mu       sync.Mutex // guards what follows; held for a few additions only
	requests [budgetSeconds]int64
	retries  [budgetSeconds]int64
	second   int64 // the newest second counted
}

const budgetSeconds = 10

// New allows ratio retries per request of the last 10 s, and burst on top.
func New(ratio float64, burst int, now func() time.Time) *Budget {
	return &Budget{ratio: ratio, burst: int64(burst), now: now}
}

// Request counts a request that arrived now.
func (b *Budget) Request(now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests[b.advance(now)]++
}

// Take counts one retry if the budget allows it. inFlight is what is in flight
// on the instance that failed: all of it may want a retry at the same moment.
func (b *Budget) Take(inFlight int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.advance(b.now())
	var requests, retries int64
	for k := range budgetSeconds {
		requests += b.requests[k]
		retries += b.retries[k]
	}
	if float64(retries) >= b.ratio*float64(requests)+float64(max(b.burst, inFlight)) {
		return false
	}
	b.retries[i]++
	return true
}

// advance clears the seconds that have passed since the last call, and returns the index of
// the newest one. Requests may come a little late, with the time at which they began.
func (b *Budget) advance(now time.Time) int64 {
	s := now.Unix()
	switch {
	case b.second == 0:
		b.second = s
	case s < b.second-budgetSeconds: // the clock was set back: what was counted lies in the future
		b.requests, b.retries = [budgetSeconds]int64{}, [budgetSeconds]int64{}
		b.second = s
	}
	for ; b.second < s; b.second++ {
		if s-b.second > budgetSeconds {
			b.second = s - budgetSeconds
		}
		i := (b.second + 1) % budgetSeconds
		b.requests[i], b.retries[i] = 0, 0
	}
	return b.second % budgetSeconds
}
