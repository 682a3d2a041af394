package health

import (
	"maps"
	"slices"
	"sync"
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

// historyLasts is how long a slow answer is remembered.
const historyLasts = 5 * time.Minute

// history holds the slow answers of each engine that was slow lately, so that it gets more time
// when it is slow again.
type history struct {
	limit time.Duration // answers that took longer count as this long
	mu    sync.Mutex
	slow  map[string][]slowAnswer // by address, each later and quicker than the one before
}

// slowAnswer is a late answer: how long it took, and when it came.
type slowAnswer struct {
	took time.Duration
	at   time.Time
}

// remember records an answer if it was slow.
func (h *history) remember(address string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	took = min(took, h.limit)
	for a, answers := range h.slow {
		h.slow[a] = slices.DeleteFunc(answers, func(s slowAnswer) bool {
			return now.Sub(s.at) > historyLasts || a == address && s.took <= took
		})
	}
	maps.DeleteFunc(h.slow, func(_ string, answers []slowAnswer) bool { return len(answers) == 0 })
	if took > checkInterval {
		h.slow[address] = append(h.slow[address], slowAnswer{took, now})
	}
}

// slowest returns the time of the slowest remembered answer of an engine.
func (h *history) slowest(address string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.slow[address] {
		if time.Since(s.at) <= historyLasts {
			return s.took
		}
	}
	return 0
}
