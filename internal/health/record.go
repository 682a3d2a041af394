package health

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// record is the strikes and the ejection of one engine, in both roles together. An engine
// that serves well has none.
type record struct {
	incarnations [2]string // by role; "" for a role that it does not have
	strikes      int
	ejected      bool
	hard         bool
	since        time.Time
	reason       string
	ejections    int       // in a row, each soon after the one before
	readmitted   time.Time // when it was readmitted last; zero: never
	suspected    bool      // a silenceWatch is under way
	silentSince  time.Time // since when it has been asked for a sign of life in vain; zero: it is not asked, or gave one
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

// incarnation is that of a role.
func (r *record) incarnation(role instance.Role) *string {
	if role == instance.Prefill {
		return &r.incarnations[0]
	}
	return &r.incarnations[1]
}

// findLife finds the instance of a record in the snapshot, in this role if there is one: nil
// if its incarnation has ended.
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
