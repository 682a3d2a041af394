package zmqregister

import "sync/atomic"

// Counts is what a Bridge has heard and done since it was bound.
type Counts struct {
	Instances int64 // registered now, or about to be
	// Pings that were followed, and Refused messages that were not: no ping, or of an engine
	// that is not taken.
	Pings, Refused int64
	// Registrations that were begun, and those Lost: the pings have ended, or the engine is
	// back with other addresses.
	Registrations, Lost int64
}

// counts are the same while they change.
type counts struct{ instances, pings, refused, registrations, lost atomic.Int64 }

// Counts may be called from any goroutine.
func (b *Bridge) Counts() Counts {
	c := &b.counts
	return Counts{
		Instances: c.instances.Load(), Pings: c.pings.Load(), Refused: c.refused.Load(),
		Registrations: c.registrations.Load(), Lost: c.lost.Load(),
	}
}
