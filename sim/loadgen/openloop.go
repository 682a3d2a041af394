package loadgen

import (
	"context"
	"sync"
	"time"
)

// Schedule is an open load: every request has its time, whatever became of the
// ones before.
type Schedule struct {
	Requests int
	// At reports when request i is due, from the start; it must not go back.
	At func(i int) time.Duration
	// MaxInFlight bounds the requests that run at once; what is due beyond that
	// waits and counts as lag. 0 means no bound.
	MaxInFlight int
	// Send does request i; it is called on a goroutine of its own.
	Send func(ctx context.Context, i int)
}

// Lag is how far behind its schedule a load was sent.
type Lag struct {
	Max  time.Duration
	Late int // requests sent more than 100 ms late
}

// OpenLoop runs a schedule to its end or to the end of ctx, waits for all
// requests it has begun, and reports how late they were sent.
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
