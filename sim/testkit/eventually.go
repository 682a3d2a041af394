package testkit

import (
	"testing"
	"time"
)

// Pauses between two polls of Eventually. They grow with the time waited, so that a long wait
// does not compete for the CPU with what it waits for.
const (
	minPause = 5 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// Eventually polls cond until it returns nil. If it does not within timeout
// the test fails at once, with cond's last error. The timeout is for a broken
// program, so choose it generously; do not assert on the elapsed time.
func Eventually(t testing.TB, timeout time.Duration, cond func() error) {
	t.Helper()
	begun := time.Now()
	for {
		err := cond()
		if err == nil {
			return
		}
		waited := time.Since(begun)
		if waited >= timeout {
			t.Fatalf("did not happen within %s: %v", timeout, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the test ended first: %v", err)
		case <-time.After(min(max(waited/10, minPause), maxPause)):
		}
	}
}
