package health

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Records holds the strikes and ejections of engines. Every pick reads them; their Tracker changes
// them.
type Records struct {
	source    instance.Source
	slowStart time.Duration
	// trouble has the keys of the records, nil if there are none, so that a request
	// needs no lock while no instance has one. The list is replaced, never changed.
	trouble atomic.Pointer[[]instance.Key]

	mu        sync.RWMutex       // guards the fields below and those of each record; never held across a probe
	byAddress map[string]*record // an engine in both roles has one
	closed    bool               // later reports have no effect
}

// Trouble reports whether any instance has a record.
func (rs *Records) Trouble() bool { return rs.trouble.Load() != nil }

// Troubled lists the instances that have a record, in no order. The list must not be
// changed.
func (rs *Records) Troubled() []instance.Key {
	if list := rs.trouble.Load(); list != nil {
		return *list
	}
	return nil
}

// read returns a copy of the record of an instance, the zero record if it has none.
func (rs *Records) read(k instance.Key) record {
	if !rs.Trouble() {
		return record{}
	}
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	if r := rs.byAddress[k.Address]; r != nil {
		return *r
	}
	return record{}
}

// Available reports whether the instance is neither ejected nor suspended.
func (rs *Records) Available(k instance.Key) bool {
	r := rs.read(k)
	return !r.ejected && r.suspended == ""
}

// View returns this proxy's view of an instance: instance.Ejected, instance.Sleeping,
// instance.Paused, or "" for an instance that may be picked.
func (rs *Records) View(k instance.Key) instance.View {
	r := rs.read(k)
	if r.suspended == "" && r.ejected {
		return instance.Ejected
	}
	return r.suspended
}

// Failing reports whether the instance is ejected for a model only.
func (rs *Records) Failing(k instance.Key, model string) bool {
	return slices.Contains(rs.FailingModels(k), model)
}

// FailingModels returns the models for which the instance is ejected while it serves others.
func (rs *Records) FailingModels(k instance.Key) (models []string) {
	if !rs.Trouble() {
		return nil
	}
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	if r := rs.byAddress[k.Address]; r != nil {
		for model, s := range r.models {
			if time.Now().Before(s.until) {
				models = append(models, model)
			}
		}
	}
	return models
}

// Unreachable reports whether the instance is ejected and could not be connected to, was
// silent or hung, or has failed a trial, so that it is not tried even when few others are left.
func (rs *Records) Unreachable(k instance.Key) bool {
	r := rs.read(k)
	return r.ejected && r.hard
}

// Share returns the fraction of its picks that the instance should get. It is less than 1 during
// the slow start after an ejection, and 0 while its engine is suspended.
func (rs *Records) Share(k instance.Key) float64 {
	switch r := rs.read(k); {
	case r.suspended != "":
		return 0
	case r.readmitted.IsZero() || rs.slowStart < 0:
		return 1
	default:
		return min(1, max(0.1, float64(time.Since(r.readmitted))/float64(rs.slowStart)))
	}
}

// Ejected returns why an instance is ejected, if it is. The reason begins with "hung:" for an instance
// whose core makes no progress.
func (rs *Records) Ejected(k instance.Key) (reason string, ejected bool) {
	if r := rs.read(k); r.ejected {
		return r.reason, true
	}
	return "", false
}

// SilentFor returns how long an instance has not answered its probes; 0 if it is not probed, or
// has answered.
func (rs *Records) SilentFor(k instance.Key) time.Duration {
	if r := rs.read(k); !r.silentSince.IsZero() {
		return time.Since(r.silentSince)
	}
	return 0
}

// find returns the record of an engine, or creates it, and drops those of engines that have left.
// It returns nil if the incarnation of in has ended, whose failures are no evidence about the next
// one. The caller holds the lock.
func (rs *Records) find(in *instance.Instance) *record {
	snap := rs.source.Snapshot()
	r := rs.byAddress[in.Address]
	if r != nil && r.incarnations[in.Role.Index()] == in.Incarnation() && r.current(snap, in.Key) != nil {
		return r
	}
	if is, ok := snap.Lookup(in.Key); !ok || is.Incarnation() != in.Incarnation() {
		return nil
	}
	maps.DeleteFunc(rs.byAddress, func(address string, r *record) bool {
		return r.current(snap, instance.Key{Role: in.Role, Address: address}) == nil
	})
	if r = rs.byAddress[in.Address]; r == nil || r.incarnations[in.Role.Index()] != "" {
		r = &record{models: map[string]*modelStrikes{}}
		rs.byAddress[in.Address] = r
		if other, ok := snap.Lookup(in.Key.Other()); ok {
			r.incarnations[other.Role.Index()] = other.Incarnation()
		}
	}
	r.incarnations[in.Role.Index()] = in.Incarnation()
	rs.publish()
	return r
}

// publish stores the keys of the records in trouble. The caller holds the lock.
func (rs *Records) publish() {
	if len(rs.byAddress) == 0 {
		rs.trouble.Store(nil)
		return
	}
	roles := instance.Roles()
	list := make([]instance.Key, 0, len(roles)*len(rs.byAddress))
	for address, r := range rs.byAddress {
		for _, role := range roles {
			if r.incarnations[role.Index()] != "" {
				list = append(list, instance.Key{Role: role, Address: address})
			}
		}
	}
	rs.trouble.Store(&list)
}

// forget deletes a record. The caller holds the lock.
func (rs *Records) forget(k instance.Key) {
	if rs.byAddress[k.Address] != nil {
		delete(rs.byAddress, k.Address)
		rs.publish()
	}
}

// end deletes the record of an incarnation that has ended.
func (rs *Records) end(k instance.Key, r *record) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byAddress[k.Address] == r {
		rs.forget(k)
	}
}

// current is record.current under the lock.
func (rs *Records) current(snap *instance.Snapshot, k instance.Key, r *record) *instance.Instance {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	return r.current(snap, k)
}
