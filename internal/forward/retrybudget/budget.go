// Package retrybudget bounds the retries of the whole proxy.
package retrybudget

import (
	"sync"
	"time"
)

// Budget bounds the retries of the whole proxy, so that retries do not multiply the load of
// an unhealthy fleet. It allows a share of the requests of the last seconds, and a burst for
// the moment when an instance with many requests is lost. A nil Budget allows all retries.
type Budget struct {
	ratio float64
	burst int64
	now   func() time.Time

	mu      sync.Mutex // guards seconds; held for a few additions only
	seconds [budgetSeconds]counts
}

// counts are the counts of one second.
type counts struct{ unix, requests, retries int64 }

const budgetSeconds = 10

// New returns a Budget of ratio retries per request of the last 10 s, plus burst.
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
	b.at(now.Unix()).requests++
}

// Take counts one retry if the budget allows it. inFlight is the number of requests on the
// failed instance: all of them may need a retry at the same moment.
func (b *Budget) Take(inFlight int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now().Unix()
	var requests, retries int64
	for _, s := range b.seconds {
		if age := now - s.unix; age < budgetSeconds && age > -budgetSeconds { // else the clock was set back
			requests += s.requests
			retries += s.retries
		}
	}
	if float64(retries) >= b.ratio*float64(requests)+float64(max(b.burst, inFlight)) {
		return false
	}
	b.at(now).retries++
	return true
}

// at returns the counts of a second. Request may be called a little late, with the start of the request.
func (b *Budget) at(unix int64) *counts {
	s := &b.seconds[unix%budgetSeconds]
	if s.unix != unix {
		*s = counts{unix: unix}
	}
	return s
}
