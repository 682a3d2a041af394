package watch

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// An absence is how an entry stays in force although etcd does not hold its
// key. Etcd loses keys whose engines are well: a paused etcd that wakes up
// revokes every lease at once, and a wiped one forgets all. So the end of a key
// is a hint, and for most kinds of loss the instance itself has the last word.
type absence struct {
	kind absenceKind
	// gone is the revision of the deletion; 0 when it is not of the history that
	// the watch follows now.
	gone  int64
	since time.Time // by the monotonic clock
	// proven tells that it was usable when it went, or has answered since.
	// What is not proven is not picked.
	proven bool
	failed int // probes that failed in a row
	// held tells that it went together with so many others of its role that
	// even a living lease does not count as proof of intent.
	held bool
}

type absenceKind int

const (
	// asking: the key was deleted, and etcd is being asked for its lease. The
	// instance is shown as before, for the moment that takes.
	asking absenceKind = iota + 1
	// orphaned: the lease was lost; it serves while it answers.
	orphaned
	// kept: a store that took the place of the former one does not have it. It
	// stays in force until an operator says otherwise.
	kept
	// loaded: known from the disk, and etcd has not been read since.
	loaded
)

// reason is what people are shown.
func (a *absence) reason() string {
	switch {
	case a.kind == orphaned && !a.proven:
		return "its key is gone from etcd, and it does not answer"
	case a.kind == orphaned && a.held:
		return "its key went together with most of its role: held, and served while it answers"
	case a.kind == orphaned:
		return "its lease was lost: served while it answers"
	case a.kind == kept:
		return "etcd was replaced by a store without it: in force until it is restored or forgotten"
	case a.kind == loaded && a.proven:
		return "known from disk, and it answers; etcd has not been read yet"
	case a.kind == loaded:
		return "known from disk only: waits for an answer"
	default:
		return ""
	}
}

// probed tells that the instance is asked for a sign of life.
func (a *absence) probed() bool { return a.kind == orphaned || (!a.proven && a.kind != asking) }

// show adds what absence means to an instance that is fine otherwise.
func (a *absence) show(in *instance.Instance, say func(string, ...any)) {
	if a.kind == asking {
		return
	}
	if in.View == "" {
		switch {
		case !a.proven:
			in.View = instance.Unverified
		case a.kind == orphaned:
			in.View = instance.Orphan
		}
	}
	say("%s", a.reason())
}

// census counts the records of one role.
type census struct {
	present int // etcd holds them
	absent  int // asking or orphaned
	other   int // kept or loaded
}

// massLoss tells that so much of a role went that it looks like an accident:
// more than a third of it, and at least two.
func (c census) massLoss() bool {
	return c.absent >= 2 && 3*c.absent > c.present+c.absent+c.other
}

// quorum tells that most of a role is registered, so that those who have not
// come back after their grace are not missed.
func (c census) quorum() bool { return 3*c.present >= 2*(c.present+c.absent+c.other) }
