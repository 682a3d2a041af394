package watch

import (
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// lost decides which entries stay although etcd does not hold them any more.
type lost struct {
	*contact

	foreign      bool             // the list that is being loaded is of another store than before
	missed       map[group]census // what it has of the records that are known
	leaseQueries []leaseQuery     // not sent yet
	order        int64            // revision of the last order that was seen
	writeBacks   []Kept           // to be written back
}

// removed reports whether an operator's removal exists, in etcd or kept from before.
func (l *lost) removed(k instance.Key) bool {
	e := l.table.find(schema.KindOverride, k)
	return e != nil && e.good && e.override.State == instance.Removed
}

// onKeyLost decides about an entry whose key is missing since a revision, and queries etcd for
// its lease if the lease decides.
func (l *lost) onKeyLost(e *entry, lostAt int64) *absence {
	a := e.onKeyLost(loss{
		lostAt: lostAt, at: time.Now(), probing: l.w.o.Prober != nil, replaced: l.foreign,
		removed: l.removed(e.Key), unused: l.unused(e), verified: e.in != nil && e.in.Verified, doubtful: l.doubtful(),
	})
	if a != nil && a.kind == leaseQueried {
		l.leaseQueries = append(l.leaseQueries, leaseQuery{name: e.Name, lostAt: a.lostAt, lease: e.leased})
	}
	if a == nil && l.foreign && e.good && (e.Kind == schema.KindPending || e.leased != 0 && !e.shown()) {
		l.w.log.WithField("key", e.Text()).Warn("temporary entry of the former etcd dropped; set it again if it is still needed")
	}
	if a == nil {
		l.logLeft(e)
	}
	return a
}

// logLeft logs that an instance is dropped because its key was deleted on purpose.
func (l *lost) logLeft(e *entry) {
	if e.Kind == schema.KindInstance {
		l.w.log.WithFields(logrus.Fields{"instance": e.Key.String(), "state": e.rec.State}).Info("instance left: its key was deleted")
	}
}

// unused reports whether this proxy would not use an instance. One that is known from the disk
// only, and has not answered, counts as used if the list is suspicious: foreign, or a mass loss of the
// role.
func (l *lost) unused(e *entry) bool {
	if e.absent != nil && !e.absent.proven {
		return !l.foreign && !l.missed[group{e.Role, false}].massLoss()
	}
	return e.in != nil && (e.in.View == instance.Rejected || e.in.View == instance.Elsewhere)
}

// unanswered takes the queries of leases, answers those that the table can, and returns the
// others. etcd deletes all keys of an ended lease in one revision, so a lease under which it still
// holds a key exists. That is valid only for a table of whole revisions: after a response of etcd
// has been applied, not within one.
func (l *lost) unanswered() []leaseQuery {
	var open []leaseQuery
	for _, q := range l.leaseQueries {
		if q.alive = l.table.leases[q.lease] > 0; q.alive {
			l.leaseKnown(q)
		} else {
			open = append(open, q)
		}
	}
	l.leaseQueries = nil
	return open
}

// leaseKnown applies the answer to a question about a lease.
func (l *lost) leaseKnown(q leaseQuery) {
	e := l.table.entries[q.name]
	if e == nil || e.absent == nil || e.absent.kind != leaseQueried || e.absent.lostAt != q.lostAt {
		return // it is back, or was lost again
	}
	if a := e.absent.onLeaseAnswer(q.alive, l.table.census[e.Role].massLoss()); a != nil {
		l.table.mark(e, a)
	} else {
		l.logLeft(e)
		l.table.drop(e)
	}
}

// clearRemoval ends a removal that is kept from a former store when an operator adds
// the instance again in the present one. Command lines never lift a removal.
func (l *lost) clearRemoval(e *entry) {
	byHand := e.Kind == schema.KindPending || (e.Kind == schema.KindInstance && e.leased == 0 && e.rec.Source != schema.SourceFlags)
	if !byHand || !e.good {
		return
	}
	if ov := l.table.find(schema.KindOverride, e.Key); ov != nil && ov.absent != nil && ov.override.State == instance.Removed {
		l.table.drop(ov)
	}
}

// clearRemovals calls clearRemoval for the entries of a list that no watch has delivered. A list
// of another store ends no removal: it may be a copy from before the removal.
func (l *lost) clearRemovals(revision int64) {
	for _, e := range l.table.entries {
		if e.absent == nil && e.mod > revision {
			l.clearRemoval(e)
		}
	}
}

// dropEnded drops the entries whose absence has ended: removed ones at once, and orphans if they
// fail their probes, or if their grace is over and most of their role is registered. While etcd is
// not followed, none is dropped: one that fails is only not picked. After a suspension of this
// process, etcd is not followed until the membership was read again.
func (l *lost) dropEnded() {
	if len(l.table.absent) == 0 {
		return
	}
	l.w.suspension.noticeGap(time.Now())
	var dropped []*entry
	for _, e := range l.table.absent {
		if why := l.verdict(e); why != "" {
			dropped = append(dropped, e)
			l.w.log.WithField("instance", e.Key.String()).Info("dropped: " + why)
		}
	}
	for _, e := range dropped {
		l.table.drop(e)
	}
}

// verdict returns why an absent entry is dropped now; "" if it stays. An entry from the disk stays
// until the first list: etcd may hold its key in spite of a removal, and without the entry that key
// would look like one of another store.
func (l *lost) verdict(e *entry) string {
	if e.Kind != schema.KindInstance || e.absent.kind == loaded {
		return ""
	}
	return e.absent.ends(endConditions{
		removed: l.removed(e.Key), followed: l.live(), quorum: l.table.census[e.Role].quorum(), alternative: l.alternative(e),
		pickable: e.pickable(), now: time.Now(), grace: l.w.o.OrphanGrace,
	})
}

// alternative reports whether another instance of an entry's role answers: a registered one
// that is ready, or an orphan by its last probe.
func (l *lost) alternative(e *entry) bool {
	if e.absent.silent < orphanFailures-1 {
		return true // the answer makes no difference yet
	}
	return slices.ContainsFunc(l.table.order, func(o *entry) bool {
		if o == e || o.Kind != schema.KindInstance || o.Role != e.Role || o.in == nil || !o.in.Usable() {
			return false
		}
		return o.absent == nil || !o.absent.answered.IsZero() && o.absent.silent+o.absent.failed == 0
	})
}

// onAbsentProbe applies the outcome of a probe to an entry that etcd does not hold.
func (l *lost) onAbsentProbe(e *entry, v *verify.Answer) {
	is := refused
	switch {
	case v.OK() && l.sameEngine(e, v):
		is = answered
	case v.Silent:
		is = unanswered
	}
	a := e.absent.onProbe(is, l.alternative(e), time.Now())
	if a.proven == e.absent.proven {
		e.absent = a // nothing that is shown has changed
	} else {
		l.table.mark(e, a)
	}
	if l.verdict(e) != "" {
		l.dropEnded()
	}
}

// sameEngine reports whether the engine serves one of the models of the record; another
// engine may have taken the address.
func (l *lost) sameEngine(e *entry, v *verify.Answer) bool {
	return len(e.rec.Models) == 0 || slices.ContainsFunc(e.rec.Models, func(m string) bool { return slices.Contains(v.Facts.Models, m) })
}

// countAbsent sets the counts of absent entries in the status.
func (l *lost) countAbsent(s *Status) {
	s.Orphans, s.Held, s.Kept = 0, 0, nil
	for n, e := range l.table.absent {
		switch e.absent.kind {
		case orphaned:
			s.Orphans++
			if e.absent.held {
				s.Held++
			}
		case kept:
			s.Kept = append(s.Kept, n.Text())
		}
	}
	slices.Sort(s.Kept)
}

const (
	// maxLeaseQueries bounds the concurrent queries: ten thousand leases may end together.
	maxLeaseQueries = 16
	// leaseTimeout bounds one query, including its wait in the queue. Without an
	// answer the lease counts as lost, and the instance is probed.
	leaseTimeout = 2 * time.Second
)

// leaseQuery is a query whether a lease still exists. If it does, its key was deleted on
// purpose.
type leaseQuery struct {
	name   schema.Name
	lostAt int64 // revision of the deletion, so that a late answer is ignored
	lease  int64
	alive  bool // the answer
}

// leaseAlive reports whether etcd knows the lease. Without an answer in time, it returns false.
func (w *Watcher) leaseAlive(ctx context.Context, id clientv3.LeaseID) bool {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return false
	case w.slots <- struct{}{}:
	}
	defer func() { <-w.slots }()
	resp, err := w.cli.TimeToLive(ctx, id)
	return err == nil && resp.TTL > 0 // etcd returns -1 for a lease that it does not know
}
