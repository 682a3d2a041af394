package watch

import (
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// What a table notes between two views, so that the next one, and whoever
// follows it, need to look at nothing else.

// news are the memberships and pending adds of which something new is shown.
type news struct {
	all  bool // everything; or else keys
	keys []targetKey
}

// touch notes that whatever is shown of an address is to be made anew: its
// record, its pending add, and those of the other role.
func (t *table) touch(k instance.Key) {
	if t.aliased > 0 { // rare: no index says who is meant
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
	if !e.old && e.Kind != schema.KindOverride {
		e.old = true
		t.touched = append(t.touched, e)
	}
}

func (t *table) touchAll() {
	t.willed = true
	for _, e := range t.order {
		e.old = true
	}
	t.renewed, t.touched, t.dropped = true, nil, nil
	t.news = news{all: true}
}

// judge keeps the set of what cannot be used.
func (t *table) judge(e *entry) {
	if e.problem != "" || (e.in != nil && e.in.View == instance.Rejected) {
		t.bad[e.Name] = e
	} else {
		delete(t.bad, e.Name)
	}
}

// tell makes news of an entry.
func (t *table) tell(e *entry) {
	if !t.news.all && e.Kind != schema.KindOverride {
		t.news.keys = append(t.news.keys, targetKey{key: e.Key, pending: e.Kind == schema.KindPending})
	}
}

// willOf notes that an entry changes, which is in a hurry unless it is a leased
// instance.
func (t *table) willOf(e *entry) {
	if e != nil && e.saved() && (e.Kind != schema.KindInstance || e.leased == 0) {
		t.willed = true
	}
}

// joinOf notes that an entry comes or goes. A proxy that is killed and starts
// without etcd knows nobody but those on the disk, so that is in a hurry for
// everybody.
func (t *table) joinOf(e *entry) {
	if e.saved() {
		t.willed = true
	}
}

// takeWilled tells whether something has come or gone since it was last called, or
// more than leased instances has changed.
func (t *table) takeWilled() bool {
	was := t.willed
	t.willed = false
	return was
}

// takeNews gives what was told since it was last called.
func (t *table) takeNews() news {
	n := t.news
	t.news = news{}
	return n
}
