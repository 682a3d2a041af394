package sched

import (
	"slices"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// index is what one snapshot means for picking. Its lists are built once
// when the membership changed, and never change afterwards.
type index struct {
	snapshot *instance.Snapshot
	roles    map[instance.Role]*roleIndex
}

type roleIndex struct {
	all *candidates // whoever serves anything: requests that name no model

	byModel map[string]*candidates
	// dialects that some usable instance of this role speaks.
	dialects map[string]bool
}

type candidates struct {
	items []candidate
	turn  *atomic.Uint64
}

type candidate struct {
	instance  *instance.Instance
	connector string
	counter   *counter
}

// fits tells whether the request may have this instance: not tried before,
// and of one dialect with its partner, or with somebody who can become it.
func (c *candidate) fits(ix *index, r *Request) bool {
	switch {
	case slices.Contains(r.Tried, c.instance.Key):
		return false
	case r.Partner != nil:
		return c.connector == r.Partner.Connector
	case r.Role == instance.Prefill && !r.Alone:
		return ix.roles[instance.Decode].dialects[c.connector]
	default:
		return true
	}
}

func (s *Scheduler) current() *index {
	snap := s.opts.Source.Snapshot()
	old := s.index.Load()
	if old != nil && old.snapshot == snap {
		return old
	}
	if next := s.next.Load(); next != nil && next.snapshot == snap && s.index.CompareAndSwap(old, next) {
		return next
	}
	// Nobody has prepared it. One request builds the new index; the others go on with the old one, a
	// few milliseconds behind at worst, rather than wait for it.
	if old != nil && !s.building.TryLock() {
		return old
	} else if old == nil {
		s.building.Lock()
	}
	defer s.building.Unlock()
	old = s.index.Load()
	if snap = s.opts.Source.Snapshot(); old != nil && old.snapshot == snap {
		return old
	}
	ix := s.build(snap, old)
	s.index.Store(ix)
	return ix
}

// Prepare builds what picks need of a snapshot that is about to be published,
// so that no request has to. It is called before the source gives the snapshot
// out, by whoever publishes it.
func (s *Scheduler) Prepare(snap *instance.Snapshot) {
	s.building.Lock()
	defer s.building.Unlock()
	// What was prepared last may not have been picked from yet.
	if next := s.next.Load(); next != nil && next.snapshot == s.opts.Source.Snapshot() {
		s.index.Store(next)
	}
	s.next.Store(s.build(snap, s.index.Load()))
}

func (s *Scheduler) build(snap *instance.Snapshot, old *index) *index {
	counters := s.counters.keepFor(snap)
	ix := &index{snapshot: snap, roles: make(map[instance.Role]*roleIndex, 2)}
	for _, role := range instance.Roles() {
		ri := &roleIndex{all: old.turn(role, ""), byModel: map[string]*candidates{}, dialects: map[string]bool{}}
		ix.roles[role] = ri
		usable := snap.Usable(role)
		ri.all.items = make([]candidate, 0, len(usable))
		for _, in := range usable {
			c := candidate{instance: in, connector: s.opts.Connector(in), counter: counters[in.Key]}
			if c.connector == "" {
				continue
			}
			ri.all.items = append(ri.all.items, c)
			ri.dialects[c.connector] = true
			for _, m := range in.Record.Models {
				list := ri.byModel[m]
				if list == nil {
					list = old.turn(role, m)
					if len(ri.byModel) == 0 { // mostly there is but one model
						list.items = make([]candidate, 0, len(usable))
					}
					ri.byModel[m] = list
				}
				list.items = append(list.items, c)
			}
		}
	}
	// A model whose instances are all down, draining or cordoned is known all
	// the same: "not now" is another answer than "never heard of".
	last := ""
	for _, in := range snap.All() {
		for _, m := range in.Record.Models {
			if m == last {
				continue
			}
			last = m
			for _, role := range instance.Roles() {
				if ri := ix.roles[role]; ri.byModel[m] == nil {
					ri.byModel[m] = old.turn(role, m)
				}
			}
		}
	}
	return ix
}

// turn starts an empty list that goes on in the round robin where the old
// snapshot's list stood, so that a change of membership does not send
// everything to the first instance again.
func (ix *index) turn(role instance.Role, model string) *candidates {
	if ix != nil {
		ri := ix.roles[role]
		if model == "" {
			return &candidates{turn: ri.all.turn}
		}
		if old := ri.byModel[model]; old != nil {
			return &candidates{turn: old.turn}
		}
	}
	return &candidates{turn: new(atomic.Uint64)}
}

// candidates finds the list for a model; known is false for a model that
// nobody lists.
func (ix *index) candidates(role instance.Role, model string) (list *candidates, known bool) {
	ri := ix.roles[role]
	if model == "" {
		return ri.all, true
	}
	if list = ri.byModel[model]; list != nil {
		return list, true
	}
	// Before anything is known, nothing is unknown.
	return ri.all, len(ix.snapshot.All()) == 0
}
