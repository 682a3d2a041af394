package wrap

import "time"

// Backoff computes the pauses between the starts of a process that keeps failing: First, then
// twice as long each time, up to Max. After a run of Max or longer the pauses start at First
// again.
type Backoff struct {
	First, Max time.Duration
	next       time.Duration
}

// After returns the pause after a run of this duration.
func (b *Backoff) After(lasted time.Duration) time.Duration {
	if b.next == 0 || lasted >= b.Max {
		b.next = b.First
	}
	d := b.next
	b.next = min(2*b.next, b.Max)
	return d
}
