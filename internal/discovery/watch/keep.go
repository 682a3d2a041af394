package watch

import (
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// What becomes of entries that etcd does not hold any more.

// removed tells that an operator's removal stands, in etcd or kept from before.
func (o *owner) removed(k instance.Key) bool {
	e := o.table.find(schema.KindOverride, k)
	return e != nil && e.good && e.override.State == instance.Removed
}

// lose decides about an entry whose key is gone since a revision, and has its lease asked
// for where that is what decides.
func (o *owner) lose(e *entry, gone int64) *absence {
	a := e.onKeyGone(loss{
		gone: gone, at: time.Now(), probing: o.w.o.Prober != nil, replaced: o.foreign,
		removed: o.removed(e.Key), serving: o.serving(e),
	})
	if a != nil && a.kind == asking {
		o.questions = append(o.questions, leaseQuestion{name: e.Name, gone: a.gone, lease: e.leased})
	}
	return a
}

// serving tells that an instance could be picked until now. One that is known
// from the disk only, and has not answered, counts if so much is missing that
// the list is doubtful.
func (o *owner) serving(e *entry) bool {
	if e.absent != nil && !e.absent.proven {
		return o.foreign || o.heavy[e.Role]
	}
	return e.in != nil && e.in.Verified && e.in.View != instance.Rejected
}

// unanswered takes the questions about leases, answers those that the table
// can, and gives the others. etcd ends a lease together with all its keys, in
// one revision, so a lease under which it still holds a key lives. That is true
// of a table of whole revisions, as after a response of etcd and not within.
func (o *owner) unanswered() []leaseQuestion {
	var open []leaseQuestion
	for _, q := range o.questions {
		if q.alive = o.table.leases[q.lease] > 0; q.alive {
			o.leaseKnown(q)
		} else {
			open = append(open, q)
		}
	}
	o.questions = nil
	return open
}

// leaseKnown takes the answer to a question about a lease.
func (o *owner) leaseKnown(q leaseQuestion) {
	e := o.table.entries[q.name]
	if e == nil || e.absent == nil || e.absent.kind != asking || e.absent.gone != q.gone {
		return // it is back, or gone for another reason
	}
	o.dirty = true
	if a := e.absent.onLeaseAnswer(q.alive, o.table.census[e.Role].massLoss()); a != nil {
		o.table.mark(e, a)
	} else {
		o.table.drop(e)
	}
}

// obey lets an operator's override act on what etcd does not hold.
func (o *owner) obey(k instance.Key) {
	if e := o.table.find(schema.KindInstance, k); e != nil && e.absent != nil && o.removed(k) {
		o.table.drop(e)
		o.dirty = true
	}
}

// lift ends a removal that is kept from a former store when an operator adds
// the instance again in the present one. Command lines never lift a removal.
func (o *owner) lift(e *entry) {
	byHand := e.Kind == schema.KindPending || (e.Kind == schema.KindInstance && e.leased == 0 && e.rec.Source != schema.SourceFlags)
	if !byHand || !e.good {
		return
	}
	if ov := o.table.find(schema.KindOverride, e.Key); ov != nil && ov.absent != nil && ov.override.State == instance.Removed {
		o.table.drop(ov)
	}
}

// liftSince does that for what a list brings that no watch has told. A list of
// another store lifts nothing: what is in it may be a copy from before the removal.
func (o *owner) liftSince(revision int64) {
	var later []*entry
	for _, e := range o.table.order {
		if e.absent == nil && e.mod > revision {
			later = append(later, e)
		}
	}
	for _, e := range later {
		o.lift(e)
	}
}

// live tells that the membership is being followed, without which nothing is
// taken out on etcd's word.
func (o *owner) live() bool { return o.listed && o.following && o.silence() < suspectAfter }

// settle looks at everything that etcd does not hold: removals act at once,
// orphans that fail their probes go, and those whose grace is over go if most
// of their role is registered. While etcd is not being followed none goes for
// good: one that fails is only not picked.
func (o *owner) settle() {
	if len(o.table.absent) == 0 {
		return
	}
	var gone []*entry
	for _, e := range o.table.absent {
		if why := o.verdict(e); why != "" {
			gone = append(gone, e)
			o.w.log.WithField("instance", e.Key.String()).Info("dropped: " + why)
		}
	}
	for _, e := range gone {
		o.table.drop(e)
		o.dirty = true
	}
}

// verdict says why an absent entry goes now; "" if it stays.
func (o *owner) verdict(e *entry) string {
	if e.Kind != schema.KindInstance {
		return ""
	}
	return e.absent.ends(surrounding{
		removed: o.removed(e.Key), followed: o.live(), quorum: o.table.census[e.Role].quorum(),
		age: time.Since(e.absent.since), grace: o.w.o.OrphanGrace,
	})
}

// hearAbsent takes a probe's outcome for an entry that etcd does not hold.
func (o *owner) hearAbsent(e *entry, v *Verification) {
	answered := v.ok() && o.sameEngine(e, v)
	a := e.absent.onProbe(answered)
	if answered && len(e.rec.Models) == 0 && !o.facts.Instances[e.Key].ok() {
		o.facts.Instances[e.Key] = v
		o.table.touch(e.Key)
		o.dirty = true
	}
	if a.proven == e.absent.proven {
		e.absent = a // nothing that is shown has changed
	} else {
		o.table.mark(e, a)
		o.dirty = true
	}
	if o.verdict(e) != "" {
		o.settle()
	}
}

// sameEngine tells that the engine serves something of what the record says;
// another one may have taken the address.
func (o *owner) sameEngine(e *entry, v *Verification) bool {
	return len(e.rec.Models) == 0 || slices.ContainsFunc(e.rec.Models, func(m string) bool { return slices.Contains(v.Facts.Models, m) })
}

// absentees counts for the status.
func (o *owner) absentees(s *Status) {
	s.Orphans, s.Held, s.Kept = o.table.tally.orphans, o.table.tally.held, nil
	if o.table.tally.kept == 0 {
		return
	}
	for n, e := range o.table.absent {
		if e.absent.kind == kept {
			s.Kept = append(s.Kept, n.Text())
		}
	}
	slices.Sort(s.Kept)
}
