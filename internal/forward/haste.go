package forward

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/upstream"
)

// When more has come within hasteTime of what came before, a stream is in a hurry,
// and no longer read event by event: it waits until gatherBytes are there, or for
// hasteTime, and goes on like that as long as this brings two events or more. No
// reader sees a token come 1 ms later; but each wake-up, read and write costs more
// than the event in it.
const (
	hasteTime = time.Millisecond
	// opening is how many events a stream begins with: its role and a token.
	opening = 2
	// gatherBytes leave room in a large buffer for what comes while it is read.
	gatherBytes = largeBuffer * 3 / 4
)

// haste tells whether a stream is in a hurry. The zero value is not.
type haste struct {
	last time.Time // when something came
	on   bool
}

// came is told of the events that one read has brought, and when. What has come
// together after a while may have come in all that time: a busy proxy's reads bring
// several events of a slow stream. Only of the first read it is taken for haste, since
// that happens once.
func (h *haste) came(events int, now time.Time) {
	passed := now.Sub(h.last)
	switch {
	case h.last.IsZero():
		h.on = events > opening
	case h.on:
		h.on = time.Duration(events)*hasteTime >= 2*max(passed, hasteTime)
	default:
		h.on = passed <= hasteTime
	}
	h.last = now
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
