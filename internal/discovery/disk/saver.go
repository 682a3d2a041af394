package disk

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

const (
	// savePause is the least time between two writes of the snapshot.
	savePause = time.Second
	// leasedPause is the least time between two writes while leased instances only change, and
	// none is added or removed. The sync of a file takes as much time as some hundred requests,
	// since it also flushes other recent writes, above all the access log. An older file does
	// little harm: after a start all instances in it are probed before they are used.
	leasedPause = 10 * time.Second
)

// SaverOptions configure a Saver.
type SaverOptions struct {
	Dir string
	// Age is the maximum age of the file when it is read.
	Age time.Duration
	// Take returns the state to write, nil if there is none. It returns false when ctx has ended.
	Take func(ctx context.Context) (*State, bool)
	// Wrote is called after each write. at is the time of the state.
	Wrote func(at time.Time, err error)
	Log   logrus.FieldLogger
}

// Saver writes the file after changes, at a limited rate.
type Saver struct {
	o       SaverOptions
	changed chan struct{} // a change was not saved yet; capacity one
	durable chan struct{} // the same for a change to save soon
}

// NewSaver returns a Saver; the caller must call Run.
func NewSaver(o SaverOptions) *Saver {
	return &Saver{o: o, changed: make(chan struct{}, 1), durable: make(chan struct{}, 1)}
}

// Changed records a change of the membership. soon reports that an operator has made it, or that an
// instance was added or removed. It does not block.
func (s *Saver) Changed(soon bool) {
	if soon {
		etcd.Signal(s.durable)
	} else {
		etcd.Signal(s.changed)
	}
}

// Run writes the file after changes until ctx ends, and every Age/24, so that the file does not
// become too old while nothing changes.
func (s *Saver) Run(ctx context.Context) {
	fresh := time.NewTicker(max(s.o.Age/24, savePause))
	defer fresh.Stop()
	failed := false
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.durable:
		case <-s.changed:
			if !s.delay(ctx, leasedPause-time.Since(last)) {
				return
			}
		case <-fresh.C:
		}
		last = time.Now()
		for _, done := range []chan struct{}{s.durable, s.changed} { // Take includes these changes
			select {
			case <-done:
			default:
			}
		}
		state, ok := s.o.Take(ctx)
		if !ok {
			return
		}
		if state != nil {
			if failed = s.write(state, failed); failed {
				etcd.Signal(s.changed) // try again after leasedPause
			}
		}
		if !sleep.For(ctx, savePause) {
			return
		}
	}
}

// Last writes the last state, after Run has ended.
func (s *Saver) Last(state *State) { s.write(state, false) }

// delay waits for d, or until something is to be saved soon. It reports
// whether ctx still runs.
func (s *Saver) delay(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-s.durable:
	case <-t.C:
	}
	return true
}

// write writes the file and reports whether that failed. It logs only the first failure in a row.
func (s *Saver) write(state *State, failed bool) bool {
	err := Write(s.o.Dir, state)
	if err != nil && !failed {
		s.o.Log.WithField("error", err).Warn("cannot save the membership to --state-dir; retrying")
	}
	s.o.Wrote(state.SavedAt, err)
	return err != nil
}
