// Package sleep has waits that end with a context.
package sleep

import (
	"context"
	"time"
)

// For blocks for d and returns true, or until ctx ends and returns false.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Every calls f every d, with the time of the tick, until ctx ends. Ticks during a call are dropped.
func Every(ctx context.Context, d time.Duration, f func(now time.Time)) {
	ticker := time.NewTicker(d)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			f(now)
		}
	}
}

// Until blocks until t and returns true, or until ctx ends and returns false.
func Until(ctx context.Context, t time.Time) bool { return For(ctx, time.Until(t)) }
