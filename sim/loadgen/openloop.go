package loadgen

import (
	"context"
	"sync"
	"time"
)

// Schedule is an open-loop load: every request has a fixed time, regardless of
// earlier requests.
type Schedule struct {
	Requests int
	// At returns the time from the start at which request i is due; it must not decrease.
	At func(i int) time.Duration
	// MaxInFlight bounds the number of concurrent requests; 0 means no bound. Due
	// requests above it wait, which counts as lag.
	MaxInFlight int
	// Send sends request i; it is called in a new goroutine.
	Send func(ctx context.Context, i int)
}

// Lag is the delay of the requests of a load behind its schedule.
type Lag struct {
	Max  time.Duration
	Late int // requests sent more than 100 ms late
}

// OpenLoop runs a schedule to its end or to the end of ctx. It waits for all
// requests that it has started, and returns their lag.
func OpenLoop(ctx context.Context, s Schedule) Lag {
	var lag Lag
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, max(s.MaxInFlight, 0))
	timer := time.NewTimer(0)
	defer timer.Stop()
	start := time.Now()
	for i := range s.Requests {
		due := start.Add(s.At(i))
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return lag
			case <-timer.C:
			}
		}
		if s.MaxInFlight > 0 {
			select {
			case <-ctx.Done():
				return lag
			case slots <- struct{}{}:
			}
		}
		if ctx.Err() != nil {
			return lag
		}
		late := time.Since(due)
		lag.Max = max(lag.Max, late)
		if late > 100*time.Millisecond {
			lag.Late++
		}
		running.Go(func() {
			s.Send(ctx, i)
			if s.MaxInFlight > 0 {
				<-slots
			}
		})
	}
	return lag
}
