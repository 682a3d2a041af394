package testkit

import (
	"testing"
	"time"
)

// pollEvery is the pause between two looks of Eventually.
const pollEvery = 5 * time.Millisecond

// Eventually polls cond until it returns nil. If it does not within timeout
// the test fails at once, with cond's last error. The timeout is for a broken
// program, so choose it generously; do not assert on the elapsed time.
func Eventually(t testing.TB, timeout time.Duration, cond func() error) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("did not happen within %s: %v", timeout, err)
		case <-t.Context().Done():
			t.Fatalf("the test ended first: %v", err)
		case <-tick.C:
		}
	}
}
