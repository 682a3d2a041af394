package health

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// record is what is held against one engine, in whatever role. Whoever is well has none.
type record struct {
	lives       [2]string // incarnations, by role; "" where it does not stand
	strikes     int
	out         bool
	hard        bool
	since       time.Time
	reason      string
	ejections   int       // that followed each other soon
	back        time.Time // when it was readmitted last
	suspected   bool      // a silenceWatch is under way
	silentSince time.Time // when it was asked for a sign of life that has not come; zero: it has
}

// record finds or makes the record; the lock is held.
func (t *Tracker) record(in *instance.Instance) *record {
	r := t.records[in.Address]
	if r != nil && *r.life(in.Role) == in.Incarnation() {
		return r
	}
	if r == nil || *r.life(in.Role) != "" {
		r = &record{}
		t.records[in.Address] = r
		if other, ok := t.o.Source.Snapshot().Lookup(instance.Key{Role: in.Role.Other(), Address: in.Address}); ok {
			*r.life(other.Role) = other.Incarnation()
		}
	}
	*r.life(in.Role) = in.Incarnation()
	t.tell()
	return r
}

// life is the incarnation in a role.
func (r *record) life(role instance.Role) *string {
	if role == instance.Prefill {
		return &r.lives[0]
	}
	return &r.lives[1]
}

// lives finds an engine that a record is about among the members, in this role if it can:
// nil when that life of it has ended.
func (t *Tracker) lives(snap *instance.Snapshot, k instance.Key, r *record) *instance.Instance {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, role := range []instance.Role{k.Role, k.Role.Other()} {
		if in, ok := snap.Lookup(instance.Key{Role: role, Address: k.Address}); ok && in.Incarnation() == *r.life(role) {
			return in
		}
	}
	return nil
}
