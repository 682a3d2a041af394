package watch

import (
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// The changes that a table records between two views, so that the next view and the update of
// the probes process nothing else.

// changes are the memberships and pending adds whose view has changed.
type changes struct {
	all  bool // everything; or else keys
	keys []targetKey
}

// touch marks everything that is shown of an address as stale: its record, its pending add,
// and those of the other role.
func (t *table) touch(k instance.Key) {
	t.dirty = true
	if t.aliased > 0 { // rare: there is no index of other spellings
		t.touchAll()
		return
	}
	for _, role := range instance.Roles() {
		for _, kind := range []schema.Kind{schema.KindInstance, schema.KindPending} {
			if e, ok := t.entries[schema.Name{Kind: kind, Role: role, Address: k.Address}]; ok {
				t.touchOne(e)
			}
		}
	}
}

func (t *table) touchOne(e *entry) {
	if e.Kind == schema.KindDocument {
		t.staleDocuments = true
	}
	if !e.old && e.shown() {
		e.old = true
		t.stale = append(t.stale, e)
	}
}

func (t *table) touchAll() {
	t.dirty, t.durable.dirty, t.staleDocuments = true, true, true
	for _, e := range t.order {
		e.old = true
	}
	t.renewed, t.stale, t.dropped = true, nil, nil
	t.changes = changes{all: true}
}

// updateBad updates the set of entries that cannot be used.
func (t *table) updateBad(e *entry) {
	if e.problem != "" || (e.in != nil && e.in.View == instance.Rejected) {
		t.bad[e.Name] = e
	} else {
		delete(t.bad, e.Name)
	}
}

// noteChange records that the view of an entry has changed.
func (t *table) noteChange(e *entry) {
	if e.Kind == schema.KindDocument {
		t.staleDocuments = true
	}
	if !t.changes.all && e.shown() {
		t.changes.keys = append(t.changes.keys, targetKey{key: e.Key, pending: e.Kind == schema.KindPending})
	}
}

// durable reports whether the file has to be written soon.
type durable struct{ dirty bool }

// changed records the change of an entry, which is saved soon unless it is a leased instance.
func (d *durable) changed(e *entry) {
	if e != nil && e.saved() && (e.Kind != schema.KindInstance || e.leased == 0) {
		d.dirty = true
	}
}

// cameOrWent records that an entry was added or removed. That is saved soon for all entries: a
// proxy that is killed and starts without etcd knows only what is on the disk.
func (d *durable) cameOrWent(e *entry) {
	if e.saved() {
		d.dirty = true
	}
}

// take reports whether an entry was added or removed since the last call, or one that is not a
// leased instance has changed.
func (d *durable) take() bool {
	was := d.dirty
	d.dirty = false
	return was
}

// takeChanges returns the changes since the last call.
func (t *table) takeChanges() changes {
	n := t.changes
	t.changes = changes{}
	return n
}
