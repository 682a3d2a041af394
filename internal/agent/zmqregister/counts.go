package zmqregister

import "sync/atomic"

// Counts are the counters of a Bridge since it was bound.
type Counts struct {
	Instances int64 // registered now, or about to be
	// Pings is the number of accepted pings, Refused that of other messages: invalid, or of an
	// engine that cannot be registered.
	Pings, Refused int64
	// Registrations is the number of registrations begun, Lost that of those ended: the pings
	// ended, or the engine returned with other addresses.
	Registrations, Lost int64
}

// counts has the counters of Counts.
type counts struct{ instances, pings, refused, registrations, lost atomic.Int64 }

// Counts returns the counters. It is safe for concurrent use.
func (b *Bridge) Counts() Counts {
	c := &b.counts
	return Counts{
		Instances: c.instances.Load(), Pings: c.pings.Load(), Refused: c.refused.Load(),
		Registrations: c.registrations.Load(), Lost: c.lost.Load(),
	}
}
