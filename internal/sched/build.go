package sched

import (
	"slices"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// An index is built from its whole snapshot. From the previous index it takes the policies of its lists, and
// the lists whose candidates have not changed.

// model is a model that an instance lists, usable or not. A model whose instances are all down, draining or
// cordoned is still known: clients get another error for it than for an unknown one.
type model struct {
	name  string
	spans [2][]span // of its candidates in roleIndex.all, by role
}

// span is a part of a list.
type span struct{ from, to int }

// add adds a span, unless it is empty or the last one. Adjacent spans are merged.
func (m *model) add(role instance.Role, s span) {
	spans := &m.spans[role.Index()]
	switch last := len(*spans) - 1; {
	case s.from == s.to || last >= 0 && (*spans)[last].to == s.to:
	case last >= 0 && (*spans)[last].to == s.from:
		(*spans)[last].to = s.to
	default:
		*spans = append(*spans, s)
	}
}

// build builds the index of a snapshot; the caller holds building. It continues the index that was built
// last, even if that was never used, since the counters match that one.
func (x *indexer) build(snap *instance.Snapshot) *index {
	old := &index{prefill: &roleIndex{}, decode: &roleIndex{}}
	if latest := x.latest.Load(); latest != nil {
		old = latest[1]
	}
	x.loads.counters.update(old.snapshot, snap)

	next := &index{snapshot: snap}
	var all [2]candidates
	for _, role := range instance.Roles() {
		to, n := &all[role.Index()], len(snap.Usable(role))
		to.items, to.facts = make([]policy.Candidate, 0, n), make([]facts, 0, n)
	}
	byName := make(map[string]*model, len(old.models))
	var models []*model
	for list := snap.All(); len(list) > 0; {
		// Instances in sequence often list the same models.
		names, role := modelsOf(list[0]), list[0].Role
		to := &all[role.Index()]
		from := len(to.items)
		for len(list) > 0 && list[0].Role == role && slices.Equal(modelsOf(list[0]), names) {
			if listed(list[0]) {
				x.addTo(to, list[0])
			}
			list = list[1:]
		}
		for _, name := range names {
			m := byName[name]
			if m == nil {
				m = &model{name: name}
				byName[name], models = m, append(models, m)
				next.models = append(next.models, name)
			}
			m.add(role, span{from, len(to.items)})
		}
	}
	next.prefill = x.roleIndex(instance.Prefill, old.prefill, &all[0], models)
	next.decode = x.roleIndex(instance.Decode, old.decode, &all[1], models)
	return next
}

// addTo adds the candidates of an instance to a list: one for each of its ranks, none if the proxy does not
// support its dialect.
func (x *indexer) addTo(list *candidates, in *instance.Instance) {
	key := x.opts.PairKey(in)
	if key.Connector == "" {
		return
	}
	c, _ := x.loads.counters.find(in.Address)
	other := c.entry(in.Role.Other()).Load()
	own := facts{
		counter: c, pairKey: key, slow: in.Slow(),
		both: listed(other) && x.opts.PairKey(other).Connector != "", zone: in.Record.Labels[zoneLabel],
	}
	list.items, list.facts = append(list.items, policy.NewCandidate(in, 0, &c.load)), append(list.facts, own)
	for i, load := range x.loads.counters.ranks(in.Address, in.Ranks()) {
		list.items, list.facts = append(list.items, policy.NewCandidate(in, i+1, load)), append(list.facts, own)
	}
}

// listed reports whether an instance is a candidate: usable, or slow, as the last resort of its role.
func listed(in *instance.Instance) bool { return in != nil && (in.Usable() || in.Slow()) }

// modelsOf returns the models that an instance lists; none if it belongs to another fleet.
func modelsOf(in *instance.Instance) []string {
	if in.View == instance.Elsewhere {
		return nil
	}
	return in.Record.Models
}

// roleIndex builds the index of a role from the candidates of all models.
func (x *indexer) roleIndex(role instance.Role, old *roleIndex, all *candidates, models []*model) *roleIndex {
	ri := &roleIndex{byModel: make(map[string]*candidates, len(models)), pairKeys: map[connector.PairKey]int{}}
	for i := range all.items {
		if all.items[i].Rank == 0 {
			ri.only = all.facts[i].pairKey
			ri.pairKeys[ri.only]++
		}
	}
	ri.alike = len(ri.pairKeys) == 1
	whole := []span{{0, len(all.items)}}
	all.sum()
	ri.all = x.continued(role, old.all, all)
	// Usually there is one model, or the same instances serve many adapters: then their lists share the
	// candidates.
	part, spans := ri.all, whole
	for _, m := range models {
		was, of := old.byModel[m.name], m.spans[role.Index()]
		switch {
		case slices.Equal(of, spans):
		case was != nil && was.has(ri.all, of):
			part, spans = was, of
		default:
			part, spans = ri.all.part(of), of
		}
		ri.byModel[m.name] = x.continued(role, was, part)
	}
	for name, list := range old.byModel {
		if ri.byModel[name] == nil {
			list.close()
		}
	}
	return ri
}

// part returns a copy of these spans of the list, without policies.
func (c *candidates) part(spans []span) *candidates {
	next := &candidates{}
	for _, s := range spans {
		next.items, next.facts = append(next.items, c.items[s.from:s.to]...), append(next.facts, c.facts[s.from:s.to]...)
	}
	next.sum()
	return next
}

// sum sets the fields that depend on the candidates.
func (c *candidates) sum() {
	c.all = policy.All(c.items)
	for i := range c.facts {
		if c.facts[i].slow {
			c.slow++
		}
		if c.facts[i].both {
			c.both++
		}
		if c.facts[i].zone != "" {
			c.zones++
		}
	}
}

// continued returns the list that replaces old (nil for a new model), with the candidates of part. It
// returns old itself if that has the same candidates, since policies forget recent work when their list is
// replaced. Otherwise the new list takes over the policies, which continue with the next turn.
func (x *indexer) continued(role instance.Role, old, part *candidates) *candidates {
	if old != nil && same(old.items, part.items) && same(old.facts, part.facts) {
		return old
	}
	next := *part
	if old != nil {
		next.policies = old.policies
	} else {
		next.policies = x.newPolicies(role)
	}
	return &next
}

// has reports whether the list equals these spans of another one.
func (c *candidates) has(all *candidates, spans []span) bool {
	at := 0
	for _, s := range spans {
		end := at + s.to - s.from
		if end > len(c.items) || !slices.Equal(c.items[at:end], all.items[s.from:s.to]) || !slices.Equal(c.facts[at:end], all.facts[s.from:s.to]) {
			return false
		}
		at = end
	}
	return at == len(c.items)
}

// same reports whether two slices are equal. It compares no elements if they share them.
func same[T comparable](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// close drops the state of the policies of a list that no later index has. A pick that still uses an older
// index continues without that state.
func (c *candidates) close() {
	for _, r := range c.recorders() {
		r.Close()
	}
}
