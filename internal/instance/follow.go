package instance

import "context"

// Source provides the current membership.
type Source interface{ Snapshot() *Snapshot }

// Follow calls f with the current snapshot and then with each newer one, until ctx ends. prev
// is the snapshot of the previous call, nil in the first one. Snapshots that were superseded while
// f ran are skipped; the newest one never is. Follow starts no goroutine: f is not called after
// Follow has returned.
func Follow(ctx context.Context, source func() *Snapshot, f func(prev, next *Snapshot)) {
	var prev *Snapshot
	Await(ctx, source, func(s *Snapshot) bool {
		f(prev, s)
		prev = s
		return false
	})
}

// Await blocks until met returns true for the current snapshot of source, and returns true; or
// until ctx ends, and returns false. It calls met once for each snapshot that it observes, at
// least for the one that is current when it is called.
func Await(ctx context.Context, source func() *Snapshot, met func(*Snapshot) bool) bool {
	for {
		s := source()
		if met(s) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.Changed():
		}
		if ctx.Err() != nil {
			return false
		}
	}
}
