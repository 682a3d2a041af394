package health

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// record is what is held against one engine, in whatever role. Whoever is well has none.
type record struct {
	incarnations [2]string // incarnations, by role; "" where it does not stand
	strikes      int
	ejected      bool
	hard         bool
	since        time.Time
	reason       string
	ejections    int       // that followed each other soon
	readmitted   time.Time // when it was readmitted last
	suspected    bool      // a silenceWatch is under way
	silentSince  time.Time // when it was asked for a sign of life that has not come; zero: it has
}

// record finds or makes the record; the lock is held.
func (t *Tracker) record(in *instance.Instance) *record {
	r := t.records[in.Address]
	if r != nil && *r.incarnation(in.Role) == in.Incarnation() {
		return r
	}
	if r == nil || *r.incarnation(in.Role) != "" {
		r = &record{}
		t.records[in.Address] = r
		if other, ok := t.opts.Source.Snapshot().Lookup(instance.Key{Role: in.Role.Other(), Address: in.Address}); ok {
			*r.incarnation(other.Role) = other.Incarnation()
		}
	}
	*r.incarnation(in.Role) = in.Incarnation()
	t.publishTroubled()
	return r
}

// incarnation is the incarnation in a role.
func (r *record) incarnation(role instance.Role) *string {
	if role == instance.Prefill {
		return &r.incarnations[0]
	}
	return &r.incarnations[1]
}

// findLife finds an engine that a record is about among the members, in this role if it can:
// nil when that life of it has ended.
func (t *Tracker) findLife(snap *instance.Snapshot, k instance.Key, r *record) *instance.Instance {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, role := range []instance.Role{k.Role, k.Role.Other()} {
		if in, ok := snap.Lookup(instance.Key{Role: role, Address: k.Address}); ok && in.Incarnation() == *r.incarnation(role) {
			return in
		}
	}
	return nil
}
