package wrap

import "time"

// Backoff spaces the starts of a process that keeps failing: First, then twice
// as long each time, up to Max. A life that lasted Max or longer counts as a
// good one, and the next failure begins again.
type Backoff struct {
	First, Max time.Duration
	next       time.Duration
}

// After returns the pause after a life that lasted so long.
func (b *Backoff) After(lasted time.Duration) time.Duration {
	if b.next == 0 || lasted >= b.Max {
		b.next = b.First
	}
	d := b.next
	b.next = min(2*b.next, b.Max)
	return d
}
