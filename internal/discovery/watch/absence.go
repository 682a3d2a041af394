package watch

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// An absence describes an entry that stays in use although etcd does not hold its key. etcd loses
// keys of healthy engines: an etcd that was paused revokes every lease when it continues, and a
// wiped one has no keys. A lost key is therefore only a hint, and for most kinds of loss the probes
// of the instance decide.
type absence struct {
	kind absenceKind
	// lostAt is the revision of the deletion; 0 if it is not a revision of the store that the
	// watch follows now.
	lostAt int64
	since  time.Time // by the monotonic clock
	// proven reports whether the instance was usable when its key was lost, or has answered since.
	// An instance that is not proven is not picked.
	proven bool
	// failed and silent count the probes in a row that were refused or answered wrongly,
	// and those without an answer.
	failed, silent int
	answered       time.Time // last answered probe; zero if there was none since the loss
	// held reports whether a large part of the role was lost together with the key (massLoss). Then
	// even an existing lease does not prove that the key was deleted on purpose.
	held bool
}

type absenceKind int

const (
	// leaseQueried: the key was deleted, and a query of its lease is under way. Until the answer the
	// instance is shown as before.
	leaseQueried absenceKind = iota + 1
	// orphaned: the lease was lost; the instance is used while it answers.
	orphaned
	// kept: a store that replaced the former one does not have the key. The entry stays
	// active until an operator restores or forgets it.
	kept
	// loaded: known from the disk, and etcd has not been read since.
	loaded
	// unwritten: an instance of Options.Local, which etcd does not hold yet. It is used like a
	// static one.
	unwritten
)

// The kinds are the states of a state machine. Each event below returns the next state, or drops
// the entry; nothing else changes an absence:
//
//	key lost          → leaseQueried, orphaned or kept, or dropped   (onKeyLost)
//	lease queried     → orphaned, or dropped                   (onLeaseAnswer)
//	another store     → leaseQueried becomes orphaned           (onStoreReplaced)
//	a probe ends      → proven or not                          (onProbe)
//	time passes       → dropped                                (ends)
//	suspension ends   → probes and grace count again from 0    (onResume)
//	key in a list     → the absence ends
//
// The functions are pure: their callers pass all that they depend on.

// orphanFailures is the number of probes in a row that must fail until an orphan counts
// as dead.
const orphanFailures = 2

// loss describes the loss of the key of an entry.
type loss struct {
	lostAt   int64 // revision of the deletion, or of the list that lacks it
	at       time.Time
	probing  bool // instances are probed
	replaced bool // not deleted: another store took over
	removed  bool // an operator's removal exists
	// unused reports whether this proxy would not have used the instance: it was rejected,
	// belongs to another fleet, or is known from the disk only.
	unused   bool
	verified bool // the instance has answered, or its record is complete
	// doubtful reports whether this process was suspended, or etcd did not answer, a short time ago:
	// a lease may have expired although its agent runs.
	doubtful bool
}

// onKeyLost returns the absence of an entry whose key is missing; nil drops the entry.
//
// An entry without a lease is dropped, unless its key was lost because another store took over. A
// temporary override or document is dropped in both cases. An entry with a lease is dropped if its
// agent had announced the end: it writes draining, or down without a cause, before it revokes its
// lease. In any other state, and in a doubtful moment, the lease is queried, since leases also
// expire while their instances are healthy. This includes slow and starting engines, which still
// run.
func (e *entry) onKeyLost(l loss) *absence {
	a := &absence{lostAt: l.lostAt, since: l.at, proven: true}
	if e.absent != nil { // loaded from the disk
		a.proven = e.absent.proven
	}
	if l.replaced {
		a.lostAt = 0
	}
	switch {
	case !l.probing, !e.good, e.Kind == schema.KindPending:
		return nil // without probes it is unknown whether it still serves
	case !e.shown() && e.leased != 0:
		return nil // kept, a temporary override or document would have no end
	case !e.shown(), e.leased == 0:
		if !l.replaced || (e.Kind == schema.KindInstance && l.removed) {
			return nil
		}
		if e.absent != nil && e.Kind == schema.KindInstance && e.rec.Source == schema.SourceFlags {
			return nil // of an earlier process, whose flags are no longer valid
		}
		a.kind = kept
		return a
	case l.removed, l.unused:
		return nil
	case e.announcesEnd() && !l.doubtful:
		return nil
	case l.replaced, !a.proven:
		a.kind = orphaned
	default:
		a.kind = leaseQueried
	}
	a.proven = a.proven && l.verified
	return a
}

// announcesEnd reports whether the record announces that its lease will be revoked.
func (e *entry) announcesEnd() bool {
	return e.rec.State == instance.Draining || e.rec.State == instance.Down && e.rec.Cause != instance.CauseSlow
}

// pickable reports whether a record in this state may be picked, perhaps as a last resort.
func (e *entry) pickable() bool {
	return e.rec.State == instance.Ready || e.rec.State == instance.Down && e.rec.Cause == instance.CauseSlow
}

// onLeaseAnswer applies etcd's answer about the lease. A lease that still exists means that the
// key was deleted on purpose, so the entry is dropped (nil), unless the loss of other keys at
// the same time suggests an accident (held).
func (a absence) onLeaseAnswer(alive, massLoss bool) *absence {
	if alive && !massLoss {
		return nil
	}
	a.kind, a.held = orphaned, alive
	return &a
}

// onStoreReplaced drops the facts of the former store: the revision of the deletion, and the query
// of the lease.
func (a absence) onStoreReplaced() *absence {
	a.lostAt = 0
	if a.kind == leaseQueried {
		a.kind = orphaned
	}
	return &a
}

// onResume restarts the counts after a suspension of this process: that time, and the probes that
// were under way, are no evidence about the instance.
func (a absence) onResume(now time.Time) *absence {
	a.failed, a.silent, a.since = 0, 0, now
	if !a.answered.IsZero() {
		a.answered = now
	}
	return &a
}

// outcome is the result of one probe of an absent instance.
type outcome int

const (
	answered outcome = iota
	refused          // no connection, an error, or another model
	unanswered
)

// onProbe applies the outcome of a probe. Silence counts against an instance only if another one of
// its role answers (alternative): otherwise the machine may be slow, and excluding the last
// instance would not help any request.
func (a absence) onProbe(is outcome, alternative bool, now time.Time) *absence {
	switch is {
	case answered:
		a.failed, a.silent, a.proven, a.answered = 0, 0, true, now
		return &a
	case refused:
		a.failed++
	case unanswered:
		a.silent++
	}
	if a.failed >= orphanFailures || a.silent >= orphanFailures && alternative {
		a.proven = false
	}
	return &a
}

// endConditions holds the facts outside of an absence that decide whether it ends.
type endConditions struct {
	removed     bool // an operator's removal exists
	followed    bool // etcd is being followed, so that its answers count
	quorum      bool // most of its role is registered
	alternative bool // another instance of its role answers
	pickable    bool // its record allows picks
	now         time.Time
	grace       time.Duration
}

// ends returns why an absent instance is dropped now; "" if it stays. While etcd is not followed,
// none is dropped: one that fails its probes is only not picked.
func (a *absence) ends(s endConditions) string {
	grace := s.now.Sub(a.since) >= s.grace
	switch {
	case s.removed:
		return "removed by an operator"
	case a.kind != orphaned || !s.followed:
		return ""
	case a.failed >= orphanFailures:
		return "its key is missing in etcd, and it does not answer"
	case a.silent >= orphanFailures && (s.alternative || grace && s.now.Sub(a.answered) >= s.grace):
		return "its key is missing in etcd, and it does not answer"
	case grace && !s.pickable:
		return "its key is missing in etcd and has not come back"
	case grace && s.quorum:
		return "its key is missing in etcd and has not come back, as most others have"
	default:
		return ""
	}
}

// reason returns the text for /status and pdctl.
func (a *absence) reason(pickable bool) string {
	switch {
	case a.kind == orphaned && !a.proven:
		return "its key is missing in etcd: not used until it answers"
	case a.kind == orphaned && !pickable:
		return "its lease was lost: kept until its agent registers it again"
	case a.kind == orphaned && a.held:
		return "its key was lost together with many of its role: held, and used while it answers"
	case a.kind == orphaned:
		return "its lease was lost: used while it answers"
	case a.kind == kept:
		return "etcd was replaced by a store without it: active until it is restored or forgotten"
	case a.kind == unwritten:
		return "on the command line; etcd does not hold it yet"
	case a.kind == loaded && a.proven:
		return "known from disk, and it answers; etcd has not been read yet"
	case a.kind == loaded:
		return "known from disk only: waits for an answer"
	default:
		return ""
	}
}

// probed reports whether the instance is probed.
func (a *absence) probed() bool { return a.kind == orphaned || (!a.proven && a.kind != leaseQueried) }

// show adds the view and the reason of an absence to an instance without another problem.
func (a *absence) show(in *instance.Instance, pickable bool, say func(string, ...any)) {
	if a.kind == leaseQueried {
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
	say("%s", a.reason(pickable))
}

// census counts the records of one role.
type census struct {
	present int // etcd holds them
	absent  int // leaseQueried or orphaned
	other   int // kept, loaded or unwritten
}

func (c census) total() int { return c.present + c.absent + c.other }

// massLoss reports whether the lost part of a role suggests an accident: more than a third of
// it, and at least two.
func (c census) massLoss() bool {
	return c.absent >= 2 && 3*c.absent > c.total()
}

// quorum reports whether most of a role is registered, so that instances which have not
// registered again within their grace can be dropped.
func (c census) quorum() bool { return 3*c.present >= 2*c.total() }
