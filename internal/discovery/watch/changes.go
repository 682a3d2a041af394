package watch

import (
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

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
