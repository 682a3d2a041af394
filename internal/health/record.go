package health

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// record holds the strikes and the ejection of one engine, in both roles together. An engine
// without failures has none.
type record struct {
	incarnations [2]string // by Role.Index; "" for a role that it does not have
	strikes      int
	ejected      bool
	hard         bool
	since        time.Time
	reason       string
	ejections    int           // in a row, each soon after the one before; failed trials count, too
	readmitted   time.Time     // when it was readmitted last; zero: never
	suspected    bool          // a silenceWatch is under way
	silentSince  time.Time     // beginning of a time without answers to probes or without progress; zero: none
	trial        bool          // it is readmitted only after a successful trial
	suspended    instance.View // instance.Sleeping or instance.Paused; "" for neither
	models       map[string]*modelStrikes
}

// modelStrikes are the consecutive strikes of one model on an engine.
type modelStrikes struct {
	n      int
	others bool      // requests for another model have succeeded since
	last   time.Time // time of the last strike
	until  time.Time // end of the ejection for this model; zero: none
}

// current returns the instance of a record in the snapshot, in this role if there is one; nil
// if its incarnation has ended.
func (r *record) current(snap *instance.Snapshot, k instance.Key) *instance.Instance {
	for _, role := range []instance.Role{k.Role, k.Role.Other()} {
		if in, ok := snap.Lookup(instance.Key{Role: role, Address: k.Address}); ok && in.Incarnation() == r.incarnations[role.Index()] {
			return in
		}
	}
	return nil
}

// eject records an ejection. Earlier ejections are not counted if the engine has served without a
// failure for forgiveAfter since the last one.
func (r *record) eject(hard bool, reason string, forgiveAfter time.Duration) {
	r.ejected, r.hard, r.since, r.reason = true, hard, time.Now(), reason
	if !r.readmitted.IsZero() && time.Since(r.readmitted) > forgiveAfter {
		r.ejections = 0
	}
	r.ejections++
}

// readmit records that the engine is available again.
func (r *record) readmit() {
	r.ejected, r.hard, r.strikes, r.readmitted, r.silentSince, r.trial = false, false, 0, time.Now(), time.Time{}, false
}
