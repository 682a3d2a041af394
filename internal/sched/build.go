package sched

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// The index of a snapshot is derived from the previous one: the cost of a change of the
// membership is that of the changed entries, and of a copy of the lists that contain them.

// change is one difference between two snapshots; see instance.Changes.
type change struct{ was, is *instance.Instance }

// latest returns the instance after the change, or before it if there is none after it.
func (c change) latest() *instance.Instance { return cmp.Or(c.is, c.was) }

// edit replaces the candidates of one address in a list.
type edit struct {
	address string
	ranks   []candidate // none: the address is removed
}

// edits are the edits of one role, in the order of its lists.
type edits struct {
	all     []edit
	byModel map[string][]edit // the edits of a model's list
}

// build makes the index of a snapshot; building is held. It starts from the index that was
// built last, also if it was never used, since the counters fit that one.
func (x *indexer) build(snap *instance.Snapshot) *index {
	if x.built == nil {
		x.built = &index{prefill: x.newRoleIndex(instance.Prefill), decode: x.newRoleIndex(instance.Decode)}
		x.models = map[string]int{}
	}
	old := x.built
	var changes []change
	instance.Changes(old.snapshot, snap, func(was, is *instance.Instance) { changes = append(changes, change{was, is}) })
	counters := x.loads.counters.update(changes)
	models := x.countModels(changes)
	n := len(changes)
	changes, counters = x.withOtherRoles(changes, counters)
	var prefill, decode edits
	for i, c := range changes {
		var now []candidate
		if listed(c.is) {
			now = x.candidatesOf(c.is, counters[i])
		}
		switch {
		case len(now) == 0 && !listed(c.was):
		case c.latest().Role == instance.Prefill:
			prefill.add(c, now)
		default:
			decode.add(c, now)
		}
	}
	if len(changes) > n { // withOtherRoles has added some at the end
		prefill.sort()
		decode.sort()
	}
	x.built = &index{
		snapshot: snap,
		prefill:  old.prefill.apply(&prefill, models, x.models),
		decode:   old.decode.apply(&decode, models, x.models),
	}
	return x.built
}

// candidatesOf makes the candidates of an instance: one for each of its ranks, none if the
// proxy does not speak its dialect.
func (x *indexer) candidatesOf(in *instance.Instance, c *counter) []candidate {
	dialect := x.opts.Connector(in)
	if dialect == "" {
		return nil
	}
	other := c.entry(in.Role.Other()).Load()
	own := facts{
		counter: c, pairKey: connector.PairKey{Connector: dialect, Build: x.opts.Build(in), Blocks: x.opts.Blocks(in)}, slow: in.Slow(),
		both: listed(other) && x.opts.Connector(other) != "", zone: in.Record.Labels[zoneLabel],
	}
	out := []candidate{{policy.NewCandidate(in, 0, &c.load), own}}
	for i, load := range x.loads.counters.ranks(in.Address, in.Ranks()) {
		out = append(out, candidate{policy.NewCandidate(in, i+1, load), own})
	}
	return out
}

// withOtherRoles adds to changes the other instance of each engine in both roles: facts.both
// of that one may have changed.
func (x *indexer) withOtherRoles(changes []change, counters []*counter) ([]change, []*counter) {
	var changed map[*instance.Instance]bool // all in changes; made when it is needed
	for i, n := 0, len(changes); i < n; i++ {
		c := changes[i].latest()
		if c.View == instance.Pending {
			continue
		}
		count, ok := x.loads.counters.find(c.Address)
		if !ok {
			continue
		}
		other := count.entry(c.Role.Other()).Load()
		if other == nil {
			continue
		}
		if changed == nil {
			changed = make(map[*instance.Instance]bool, n)
			for _, c := range changes {
				changed[c.is] = true
			}
		}
		if changed[other] {
			continue
		}
		changed[other] = true
		changes, counters = append(changes, change{other, other}), append(counters, count)
	}
	return changes, counters
}

// listed reports whether an instance is a candidate: usable, or slow, which is the last
// resort of its role.
func listed(in *instance.Instance) bool { return in != nil && (in.Usable() || in.Slow()) }

// modelsOf returns the models that an instance lists; none if it is of another fleet.
func modelsOf(in *instance.Instance) []string {
	if in == nil || in.View == instance.Elsewhere {
		return nil
	}
	return in.Record.Models
}

// countModels counts how often instances list each model, usable or not: a model whose
// instances are all down, draining or cordoned is known all the same, since "not now" is
// another answer to a client than "unknown". It returns the models that may have become
// known or unknown.
func (x *indexer) countModels(changes []change) map[string]bool {
	about := map[string]bool{}
	count := func(in *instance.Instance, by int) {
		for _, m := range modelsOf(in) {
			n := x.models[m] + by
			if x.models[m] = n; n == 0 {
				delete(x.models, m)
			}
			if n == 0 || n == by {
				about[m] = true
			}
		}
	}
	for _, c := range changes {
		if slices.Equal(modelsOf(c.was), modelsOf(c.is)) {
			continue
		}
		count(c.was, -1)
		count(c.is, 1)
	}
	return about
}

// add adds the change of one instance, which has these candidates now. c.was may not have been in
// any list.
func (e *edits) add(c change, now []candidate) {
	here := edit{c.latest().Address, now}
	var models []string
	if len(now) > 0 {
		models = c.is.Record.Models
	}
	e.all = append(e.all, here)
	if e.byModel == nil {
		e.byModel = map[string][]edit{}
	}
	for _, m := range models {
		e.addTo(m, here)
	}
	if c.was == nil || slices.Equal(c.was.Record.Models, models) {
		return
	}
	for _, m := range c.was.Record.Models { // removed from the lists of models that it no longer serves
		e.addTo(m, edit{address: here.address})
	}
}

// addTo adds an edit to those of a model, unless it has one of the same address: that of the
// instance's present models comes first.
func (e *edits) addTo(model string, here edit) {
	list := e.byModel[model]
	if n := len(list); n == 0 || list[n-1].address != here.address {
		e.byModel[model] = append(list, here)
	}
}

// sort puts edits into the order of the lists.
func (e *edits) sort() {
	byAddress := func(a, b edit) int { return strings.Compare(a.address, b.address) }
	slices.SortFunc(e.all, byAddress)
	for _, es := range e.byModel {
		slices.SortFunc(es, byAddress)
	}
}

func (x *indexer) newRoleIndex(role instance.Role) *roleIndex {
	newList := func() *candidates { return x.newList(role) }
	return &roleIndex{all: newList(), byModel: map[string]*candidates{}, pairKeys: map[connector.PairKey]int{}, newList: newList}
}

// apply returns the index of the role after edits. about are models that may have become
// known or unknown, known is the number of entries that list a model.
func (ri *roleIndex) apply(e *edits, about map[string]bool, known map[string]int) *roleIndex {
	if len(e.all) == 0 && len(about) == 0 {
		return ri
	}
	next := &roleIndex{}
	*next = *ri
	next.byModel = maps.Clone(ri.byModel)
	for m := range about {
		switch {
		case known[m] == 0:
			next.byModel[m].close()
			delete(next.byModel, m)
		case next.byModel[m] == nil:
			next.byModel[m] = ri.newList()
		}
	}
	if len(e.all) == 0 {
		return next
	}
	next.pairKeys = maps.Clone(ri.pairKeys)
	next.all = ri.all.apply(e.all, next.pairKeys)
	if next.alike = len(next.pairKeys) == 1; next.alike {
		for next.only = range next.pairKeys {
		}
	}
	for m, es := range e.byModel {
		list := next.byModel[m]
		switch {
		case list == nil: // no instance lists it any more
		case list.equals(ri.all) && sameEdits(es, e.all):
			// Mostly there is only one model: its list is the list of all.
			next.byModel[m] = list.withItems(next.all.items, next.all.facts)
		default:
			if list = list.apply(es, nil); list.sameInstances(next.all) {
				list = list.withItems(next.all.items, next.all.facts) // shared: there may be thousands of adapters
			}
			next.byModel[m] = list
		}
	}
	return next
}

// close drops the state of the policies of a list that no later index has. A pick that still
// uses an older index continues without that state.
func (c *candidates) close() {
	if c == nil {
		return
	}
	for i := range c.policies {
		if m := c.policies[i].memory; m.Close != nil {
			m.Close()
		}
	}
}

// equals reports whether two lists share their items. Lists with equal items may not share them.
func (c *candidates) equals(o *candidates) bool {
	return len(c.items) == len(o.items) && (len(c.items) == 0 || &c.items[0] == &o.items[0])
}

// sameInstances reports whether two lists have equal items.
func (c *candidates) sameInstances(o *candidates) bool {
	return slices.EqualFunc(c.items, o.items, func(a, b policy.Candidate) bool { return a.Instance == b.Instance && a.Rank == b.Rank })
}

// sameEdits reports whether the edits of a model's list are those of the list of all models. Edits of
// one address differ at most in that one of them removes it.
func sameEdits(model, all []edit) bool {
	return slices.EqualFunc(model, all, func(a, b edit) bool { return a.address == b.address && len(a.ranks) == len(b.ranks) })
}

// apply returns the list after edits. keys, if not nil, is kept up to date with the list.
func (c *candidates) apply(es []edit, keys map[connector.PairKey]int) *candidates {
	most := len(c.items)
	for _, e := range es {
		most += len(e.ranks)
	}
	items, own := make([]policy.Candidate, 0, most), make([]facts, 0, most)
	from := 0
	for _, e := range es {
		at, found := place(c.items[from:], e.address)
		at += from
		items, own = append(items, c.items[from:at]...), append(own, c.facts[from:at]...)
		from = at
		if found {
			if k := c.facts[at].pairKey; keys != nil && keys[k] > 1 {
				keys[k]--
			} else {
				delete(keys, k)
			}
			for from++; from < len(c.items) && c.items[from].Instance.Address == e.address; {
				from++ // its other ranks
			}
		}
		for i := range e.ranks {
			items, own = append(items, e.ranks[i].Candidate), append(own, e.ranks[i].facts)
		}
		if keys != nil && len(e.ranks) > 0 {
			keys[e.ranks[0].pairKey]++
		}
	}
	return c.withItems(append(items, c.items[from:]...), append(own, c.facts[from:]...))
}
