package watch

import (
	"context"
	"maps"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// coalesce is the least time between two publications in a burst of changes.
const coalesce = 2 * time.Millisecond

// coalesceCap bounds that time. On a machine that is otherwise busy, a publication takes longer
// without using more CPU, and the last change must not wait for that.
const coalesceCap = 200 * time.Millisecond

// schedule publishes immediately after a quiet time, otherwise as soon as coalesce or
// ten times the duration of a publication has passed, so that a burst of changes
// uses at most a tenth of one core.
func (o *owner) schedule(ctx context.Context) {
	if !o.table.dirty || !o.readable() {
		return
	}
	if o.w.suspension.gate.Load() != nil {
		o.publish(ctx) // picks wait
		return
	}
	wait := min(max(coalesce, 10*o.buildTime), coalesceCap) - time.Since(o.published)
	if wait <= 0 {
		o.publish(ctx)
		return
	}
	o.timer.Reset(wait)
}

// publish builds and stores the snapshot of the table.
func (o *owner) publish(ctx context.Context) {
	if !o.table.dirty || !o.readable() {
		return
	}
	o.timer.Stop()
	start := time.Now()
	snap := o.table.snapshot(*o.facts)
	if prepare := o.w.o.Prepare; prepare != nil {
		prepare(snap)
	}
	o.ask.retarget(ctx) // before readers see the snapshot: instances that it verifies are not probed again
	var old *instance.Snapshot
	rejected, orphans := o.rejected(), 0
	o.w.note(func(s *Status) { // both at once: a reader that has seen one of them finds the other
		old = o.w.snapshot.Swap(snap)
		s.Revision, s.Applied, s.Rejected = o.table.revision, o.table.applied, rejected
		o.countAbsent(s)
		orphans = s.Orphans
	})
	o.published = time.Now()
	o.buildTime = o.published.Sub(start)
	o.table.dirty = false
	o.logOrphans(orphans)
	old.Supersede()
	o.w.suspension.openGate(o.fresh)
	o.announce()
	if o.listed || o.table.revision > 0 {
		o.w.saver.Changed(o.table.unsaved)
		o.table.unsaved = false
	}
}

// announce closes Ready as soon as the membership is known. The published snapshot already has
// it, except for instances that are not proven.
func (o *owner) announce() {
	if o.announced || o.table.dirty || !(o.listed || (o.readable() && o.readyFromDisk())) {
		return
	}
	o.announced = true
	close(o.w.ready)
}

// logOrphans logs when the first instance is used without a lease, and when none is left.
func (o *owner) logOrphans(n int) {
	switch {
	case o.orphans == 0 && n > 0:
		o.w.log.WithField("instances", n).Warn("leases ended without a deregistration: instances stay in use while they answer")
	case o.orphans > 0 && n == 0:
		o.w.log.Info("every instance has a lease again, or was dropped")
	}
	o.orphans = n
}

// rejected counts the entries that cannot be used, and logs each once for each revision.
func (o *owner) rejected() (n int) {
	for _, e := range o.table.order {
		if !e.bad() {
			continue
		}
		if n++; o.logged[e.Name] == e.mod {
			continue
		}
		o.logged[e.Name] = e.mod
		why := e.problem
		if e.in != nil && e.in.Reason != "" {
			why = e.in.Reason
		}
		o.w.log.WithField("instance", e.Key.String()).WithField("revision", e.mod).Warn("entry in etcd rejected: " + why)
	}
	maps.DeleteFunc(o.logged, func(n schema.Name, _ int64) bool { return o.table.entries[n] == nil })
	return n
}

// touch marks the instances of an address as outdated: its record and its pending add, in both
// roles.
func (t *table) touch(k instance.Key) {
	t.dirty = true
	if t.aliased > 0 { // rare: there is no index of other spellings
		t.touchAll()
		return
	}
	for _, role := range instance.Roles() {
		for _, kind := range []schema.Kind{schema.KindInstance, schema.KindPending} {
			if e, ok := t.entries[schema.Name{Kind: kind, Key: instance.Key{Role: role, Address: k.Address}}]; ok {
				e.old = true
			}
		}
	}
}

func (t *table) touchAll() {
	t.dirty, t.unsaved = true, true
	for _, e := range t.order {
		e.old = true
	}
}

// changed records the change of an entry, which is saved soon unless it is a leased instance.
func (t *table) changed(e *entry) {
	if e != nil && e.saved() && (e.Kind != schema.KindInstance || e.leased == 0) {
		t.unsaved = true
	}
}

// membershipChanged records that an entry was added or removed. Each such change is saved soon: a proxy
// that is killed and starts without etcd knows only the file.
func (t *table) membershipChanged(e *entry) { t.unsaved = t.unsaved || e.saved() }
