package sched

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// How the index of a snapshot is made of the one before: a change of the
// membership costs what it touches, and a copy of the lists that it is in.

// change is one difference between two snapshots, as of instance.Changes.
type change struct{ was, is *instance.Instance }

// edit is what becomes of one place in a list.
type edit struct {
	address string
	is      candidate // without an instance: nobody stands there
}

// edits are those of one role, in the order of its lists.
type edits struct {
	all     []edit
	byModel map[string][]edit // those that the list of a model is concerned with
}

// build makes the index of a snapshot; building is held. It goes on from the
// index that was built last, in use yet or not, since the counters fit that one.
func (s *Scheduler) build(snap *instance.Snapshot) *index {
	if s.last == nil {
		s.last = &index{prefill: newRoleIndex(), decode: newRoleIndex()}
		s.models = map[string]int{}
	}
	old := s.last
	var changes []change
	instance.Changes(old.snapshot, snap, func(was, is *instance.Instance) { changes = append(changes, change{was, is}) })
	counters := s.counters.keep(changes)
	var prefill, decode edits
	for i, c := range changes {
		var now candidate
		if listed(c.is) {
			if dialect := s.opts.Connector(c.is); dialect != "" {
				now = candidate{instance: c.is, connector: dialect, counter: counters[i], slow: c.is.Slow()}
			}
		}
		switch {
		case now.instance == nil && !listed(c.was):
		case roleOf(c) == instance.Prefill:
			prefill.add(c.was, now)
		default:
			decode.add(c.was, now)
		}
	}
	models, from := s.countModels(changes), s.from+s.passed()
	s.last = &index{
		snapshot: snap,
		prefill:  old.prefill.after(&prefill, models, s.models, from),
		decode:   old.decode.after(&decode, models, s.models, from),
	}
	return s.last
}

// listed tells that an instance is a candidate: usable, or slow, which is the last
// resort of its role.
func listed(in *instance.Instance) bool { return in != nil && (in.Usable() || in.Slow()) }

func roleOf(c change) instance.Role {
	if c.is != nil {
		return c.is.Role
	}
	return c.was.Role
}

// countModels keeps the number of entries that list each model, usable or not:
// a model whose instances are all down, draining or cordoned is known all the
// same, as "not now" is another answer than "never heard of". It gives the
// models that the changes are about.
func (s *Scheduler) countModels(changes []change) []string {
	var about []string
	count := func(in *instance.Instance, by int) {
		if in == nil {
			return
		}
		for i, m := range in.Record.Models {
			if slices.Contains(in.Record.Models[:i], m) {
				continue
			}
			if s.models[m] += by; s.models[m] == 0 {
				delete(s.models, m)
			}
			if len(about) == 0 || about[len(about)-1] != m {
				about = append(about, m)
			}
		}
	}
	for _, c := range changes {
		count(c.was, -1)
		count(c.is, 1)
	}
	return about
}

// add takes the change of one instance in. was may have been in no list.
func (e *edits) add(was *instance.Instance, is candidate) {
	here := edit{is: is}
	var models []string
	if is.instance != nil {
		here.address, models = is.instance.Address, is.instance.Record.Models
	} else {
		here.address = was.Address
	}
	e.all = append(e.all, here)
	if e.byModel == nil {
		e.byModel = map[string][]edit{}
	}
	for i, m := range models {
		if !slices.Contains(models[:i], m) {
			e.byModel[m] = append(e.byModel[m], here)
		}
	}
	if was == nil {
		return
	}
	here.is = candidate{} // it leaves the lists of what it does not serve any more
	for i, m := range was.Record.Models {
		if !slices.Contains(models, m) && !slices.Contains(was.Record.Models[:i], m) {
			e.byModel[m] = append(e.byModel[m], here)
		}
	}
}

func newRoleIndex() *roleIndex { return &roleIndex{all: &candidates{turn: new(atomic.Uint64)}} }

// after gives the index of the role after edits. about are models that may have
// become known or unknown, known tells whether anybody lists one; from is that of
// stretchOf.
func (ri *roleIndex) after(e *edits, about []string, known map[string]int, from uint64) *roleIndex {
	about = slices.DeleteFunc(slices.Clone(about), func(m string) bool { return (known[m] > 0) == (ri.byModel[m] != nil) })
	if len(e.all) == 0 && len(about) == 0 {
		return ri
	}
	next := &roleIndex{all: ri.all, byModel: maps.Clone(ri.byModel), dialects: ri.dialects, only: ri.only}
	if next.byModel == nil {
		next.byModel = map[string]*candidates{}
	}
	for _, m := range about {
		if known[m] > 0 {
			next.byModel[m] = &candidates{turn: new(atomic.Uint64)}
		} else {
			delete(next.byModel, m)
		}
	}
	if len(e.all) == 0 {
		return next
	}
	next.dialects = maps.Clone(ri.dialects)
	if next.dialects == nil {
		next.dialects = map[string]int{}
	}
	next.all = ri.all.after(e.all, next.dialects, from)
	next.only = ""
	if len(next.dialects) == 1 {
		for next.only = range next.dialects {
		}
	}
	for m, es := range e.byModel {
		list := next.byModel[m]
		switch {
		case list == nil: // nobody lists it any more
		case list.equals(ri.all) && sameEdits(es, e.all):
			// Mostly there is but one model: its list is the list of all.
			next.byModel[m] = list.with(next.all.items, from)
		default:
			next.byModel[m] = list.after(es, nil, from)
		}
	}
	return next
}

// equals tells that two lists hold the same, if that is plain to see.
func (c *candidates) equals(o *candidates) bool {
	return len(c.items) == len(o.items) && (len(c.items) == 0 || &c.items[0] == &o.items[0])
}

// sameEdits tells that the edits of a model do to its list what all edits do
// to the list of all.
func sameEdits(model, all []edit) bool {
	return slices.EqualFunc(model, all, func(a, b edit) bool { return a.address == b.address && a.is.instance == b.is.instance })
}

// after gives the list after edits. dialects, if any, are counted along.
func (c *candidates) after(es []edit, dialects map[string]int, from uint64) *candidates {
	come := 0
	for i := range es {
		if es[i].is.instance != nil {
			come++
		}
	}
	rest := c.items
	to := make([]candidate, 0, len(rest)+come)
	for i := range es {
		e := &es[i]
		at, found := place(rest, e.address)
		to = append(to, rest[:at]...)
		if found {
			if dialects != nil {
				if d := rest[at].connector; dialects[d] > 1 {
					dialects[d]--
				} else {
					delete(dialects, d)
				}
			}
			at++
		}
		rest = rest[at:]
		if e.is.instance != nil {
			to = append(to, e.is)
			if dialects != nil {
				dialects[e.is.connector]++
			}
		}
	}
	return c.with(append(to, rest...), from)
}
