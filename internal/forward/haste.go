package forward

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/upstream"
)

// Events that come faster than hasty of them within hasteTime are no longer read
// one by one: the stream waits until gatherBytes are there, or for hasteTime.
// No reader sees a token come 1 ms later; but each wake-up, read and write costs
// more than the event in it.
const (
	hasteTime = time.Millisecond
	hasty     = 3
	// gatherBytes leave room in a large buffer for what comes while it is read.
	gatherBytes = largeBuffer * 3 / 4
)

// haste tells whether a stream is in a hurry. The zero value is not.
type haste struct {
	since  time.Time // the window begins
	events int       // in it
	on     bool
}

// came is told of the events that one read has brought, and when.
func (h *haste) came(events int, now time.Time) {
	if h.on {
		// They are those of about one hasteTime.
		h.on = events >= hasty
		h.since, h.events = now, 0
		return
	}
	if now.Sub(h.since) > hasteTime {
		h.since, h.events = now, 0
	}
	h.events += events
	h.on = h.events >= hasty
}

// gather waits until there is more than one event to read, if the stream is in a
// hurry and its body can wait.
func (s *relay) gather(body upstream.Gatherer) {
	if body == nil || !s.haste.on || s.done {
		return
	}
	s.wantLarge()
	body.Gather(gatherBytes, hasteTime)
}
