package watch

import (
	"fmt"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Whether a list goes on with the history that the watch has followed, or is
// of another store: one that was wiped, restored from an older copy, or is a
// different cluster. A wiped store may have passed the old revision again, with
// the same cluster id and the same member, so the revision alone proves
// nothing; the keys themselves do.

// rupture says why a list does not go on with the known history; "" if it does.
func (c *contact) rupture(l *etcd.Listing) string {
	t := c.table
	switch {
	case !c.listed && !c.restored:
		return "" // nothing is known yet
	case l.Cluster != c.cluster:
		return fmt.Sprintf("another cluster answers (%x, it was %x)", l.Cluster, c.cluster)
	case l.Revision < max(l.Before, t.revision):
		return fmt.Sprintf("the revision went back to %d from %d", l.Revision, max(l.Before, t.revision))
	case c.schema != 0 && l.Schema != c.schema:
		return "the schema key is not the one that was there"
	}
	// The table was complete up to its revision: whatever is older must be in it,
	// but for what the disk does not hold.
	for _, kv := range l.KVs {
		if kv.ModRevision > t.revision {
			continue
		}
		n := t.layout.Parse(string(kv.Key))
		if n.Kind == schema.KindOther {
			continue
		}
		e := t.entries[n]
		if e == nil && !c.listed && !DecodeEntry(n, kv, nil).saved() {
			continue
		}
		if e == nil || !e.same(kv) {
			return fmt.Sprintf("%s has a past that was never seen", instance.Printable(string(kv.Key), 300))
		}
	}
	// Without a schema key there is no proof that it is the same store, so a
	// list without most of the static instances does not count as their removal.
	if c.schema == 0 {
		for _, role := range instance.Roles() {
			if c.missing(l)[role].statics.heavy() {
				return "most static instances are gone, and nothing tells whether it is the same store"
			}
		}
	}
	return ""
}

// share counts how much of something is missing.
type share struct{ lost, all int }

// heavy is as census.massLoss.
func (s share) heavy() bool { return s.lost >= 2 && 3*s.lost > s.all }

// missing counts what a list lacks of the good records of each role.
type missing struct{ statics, leased share }

func (c *contact) missing(l *etcd.Listing) map[instance.Role]missing {
	there := make(map[schema.Name]bool, len(l.KVs))
	for _, kv := range l.KVs {
		there[c.table.layout.Parse(string(kv.Key))] = true
	}
	out := make(map[instance.Role]missing, 2)
	for _, e := range c.table.order {
		if e.Kind != schema.KindInstance || !e.good || (e.absent != nil && e.absent.kind != loaded) {
			continue
		}
		m := out[e.Role]
		s := &m.leased
		if e.leased == 0 {
			s = &m.statics
		}
		s.all++
		if !there[e.Name] {
			s.lost++
		}
		out[e.Role] = m
	}
	return out
}
