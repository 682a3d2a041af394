package watch

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
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

// The kinds are the states of a small machine. Each event below gives the next state, or
// says that the entry goes; nothing else changes an absence:
//
//	key gone          → asking, orphaned or kept, or it goes   (onKeyGone)
//	etcd on its lease → orphaned, or it goes                   (onLeaseAnswer)
//	another store     → asking becomes orphaned                (onStoreReplaced)
//	a probe ends      → proven or not                          (onProbe)
//	time passes       → it goes                                (ends)
//	key in a list     → no absence any more
//
// The functions are pure: their callers look up what they need to know.

// orphanFailures is how many probes in a row must fail until an orphan counts
// as dead.
const orphanFailures = 2

// loss is what is known when the key of an entry is gone.
type loss struct {
	gone     int64 // revision of the deletion, or of the list that lacks it
	at       time.Time
	probing  bool // instances are probed
	replaced bool // not deleted: another store took over
	removed  bool // an operator's removal of the instance stands
	serving  bool // it could be picked until now
}

// onKeyGone decides about an entry whose key is gone; nil: it goes.
//
// What an operator wrote goes at once, unless it was not deleted but another store took
// over; what was to end by itself goes also then. What an agent holds goes at once if it
// was leaving or of no use. Else its lease is asked for, since leases also end when
// nothing is wrong with their instances.
func (e *entry) onKeyGone(l loss) *absence {
	a := &absence{gone: l.gone, since: l.at, proven: true}
	if e.absent != nil { // loaded from the disk
		a.proven = e.absent.proven
	}
	if l.replaced {
		a.gone = 0
	}
	switch {
	case !l.probing, !e.good, e.Kind == schema.KindPending:
		return nil // without probes it cannot be known whether it still serves
	case e.Kind == schema.KindOverride && e.leased != 0:
		return nil // kept, an intent for a time would have no end
	case e.Kind == schema.KindOverride, e.leased == 0:
		if !l.replaced || (e.Kind == schema.KindInstance && l.removed) {
			return nil
		}
		if e.absent != nil && e.Kind == schema.KindInstance && e.rec.Source == schema.SourceFlags {
			return nil // of a former life of this process, whose flags count no more
		}
		a.kind = kept
	case e.rec.State != instance.Ready, l.removed, !l.serving:
		return nil
	case l.replaced, !a.proven:
		a.kind = orphaned
	default:
		a.kind = asking
	}
	return a
}

// onLeaseAnswer takes what etcd says of the lease. A living lease means that the key was
// deleted on purpose, so the entry goes (nil), unless so much went with it that it looks
// like an accident.
func (a absence) onLeaseAnswer(alive, massLoss bool) *absence {
	if alive && !massLoss {
		return nil
	}
	a.kind, a.held = orphaned, alive
	return &a
}

// onStoreReplaced: the revision of the deletion says nothing in the new store, nor does
// the new store know the lease.
func (a absence) onStoreReplaced() *absence {
	a.gone = 0
	if a.kind == asking {
		a.kind = orphaned
	}
	return &a
}

// onProbe takes the outcome of a probe.
func (a absence) onProbe(answered bool) *absence {
	if answered {
		a.failed, a.proven = 0, true
		return &a
	}
	a.failed++
	if a.failed >= orphanFailures {
		a.proven = false
	}
	return &a
}

// surrounding is what an absent instance is judged by besides its own absence.
type surrounding struct {
	removed  bool // an operator's removal stands
	followed bool // etcd is being followed, so that its word counts
	quorum   bool // most of its role is registered
	age      time.Duration
	grace    time.Duration
}

// ends says why an absent instance goes now; "" if it stays. While etcd is not being
// followed none goes for good: one that fails is only not picked.
func (a *absence) ends(s surrounding) string {
	switch {
	case s.removed:
		return "removed by an operator"
	case a.kind != orphaned || !s.followed:
		return ""
	case a.failed >= orphanFailures:
		return "its key is gone from etcd, and it does not answer"
	case s.age >= s.grace && s.quorum:
		return "its key is gone from etcd and has not come back, as most others have"
	default:
		return ""
	}
}

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
