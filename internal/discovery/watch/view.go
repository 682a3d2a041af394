package watch

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Build turns one listing of the membership into a snapshot. It is a pure
// function: equal arguments yield equal snapshots. kvs may hold any keys; those
// outside of the membership are skipped.
func Build(l schema.Layout, kvs []*mvccpb.KeyValue, revision int64, verified verify.Facts) *instance.Snapshot {
	t := newTable(l)
	t.load(kvs, revision)
	return t.snapshot(verified)
}

// snapshot returns the instances at the table's revision. Those that have not changed
// since the last snapshot are shared with it. All snapshots of a table use the same
// Model and Probing, and a change of the facts is recorded by touch.
func (t *table) snapshot(v verify.Facts) *instance.Snapshot {
	all := make([]*instance.Instance, 0, len(t.order))
	documents := &instance.Documents{}
	for _, e := range t.order {
		switch {
		case e.shown():
			if e.in == nil || e.old {
				t.show(e, v)
			}
			all = append(all, e.in)
		case e.Kind == schema.KindDocument && e.good:
			documents.List = append(documents.List, instance.Document{Key: e.Key, Value: e.value, Revision: e.mod})
		}
	}
	same := func(a, b instance.Document) bool { // the values too: a revision of another store may be the same
		return a.Key == b.Key && a.Revision == b.Revision && bytes.Equal(a.Value, b.Value)
	}
	if t.documents == nil || !slices.EqualFunc(t.documents.List, documents.List, same) {
		t.documents = documents
	}
	snap := instance.NewSnapshot(t.revision, all)
	snap.Documents = t.documents
	return snap
}

// shown reports whether an entry is an instance of the view: a membership, or a pending add.
func (e *entry) shown() bool { return e.Kind == schema.KindInstance || e.Kind == schema.KindPending }

// show rebuilds the instance of an entry.
func (t *table) show(e *entry, v verify.Facts) {
	e.old, e.shadowed = false, false
	if e.Aliased {
		other := t.find(e.Kind, e.Key)
		e.shadowed = other != nil && other != e
	}
	override := t.find(schema.KindOverride, e.Key)
	if e.Kind == schema.KindPending {
		e.in = pendingInstance(e, override, v.Pending[e.Key])
	} else {
		e.in, e.learns = t.recordInstance(e, override, v), v.MustLearn(e.Key, e.rec)
	}
}

// aliases returns the entries with another spelling of an address, such as localhost:8100, by
// canonical name. Of several spellings, the first in byte order counts; find prefers the canonical
// key.
func (t *table) aliases() map[schema.Name]*entry {
	alias := make(map[schema.Name]*entry, t.aliased)
	for _, e := range t.order {
		if !e.Aliased || !e.good {
			continue
		}
		n := schema.Name{Kind: e.Kind, Key: e.Key}
		if old, ok := alias[n]; !ok || e.Name.Address < old.Name.Address {
			alias[n] = e
		}
	}
	return alias
}

// clashes reports whether an address is registered in both roles, but its records do not show that
// one engine serves both. It is a warning only: a wrong guess must not reduce capacity.
func (t *table) clashes(e *entry) bool {
	o := t.find(schema.KindInstance, e.Key.Other())
	if o == nil || !o.good || !e.good {
		return false
	}
	fine := func(e *entry) bool { return e.leased == 0 || e.rec.KVRole == "kv_both" }
	return !fine(e) || !fine(o)
}

// roleProblem returns why an override can't keep the engine of an entry in its other role, "" if it can.
func (t *table) roleProblem(e *entry) string {
	o := t.find(schema.KindInstance, e.Key.Other())
	if o == nil || e.absent == nil && o.absent != nil && o.absent.kind == orphaned {
		return "registered as " + string(e.Role) + " only"
	}
	if o := t.find(schema.KindOverride, e.Key.Other()); o != nil && o.good && o.override.Role != "" {
		return "role " + string(o.override.Role) + " is set, too"
	}
	return ""
}

// incarnation returns the incarnation of the instance of the entry.
func (e *entry) incarnation() string { return e.instance().Incarnation() }

func (e *entry) instance() *instance.Instance {
	return &instance.Instance{
		Key: e.Key, Record: e.rec,
		Lease: e.leased, CreateRevision: e.originRev, ModRevision: e.mod, Version: e.version,
	}
}

// recordInstance applies three sources in this order: the record, the facts of this
// process, and the intent of the operator.
func (t *table) recordInstance(e, override *entry, v verify.Facts) *instance.Instance {
	in := e.instance()
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }

	switch {
	case e.shadowed:
		in.Address = instance.Printable(e.Name.Address, 300) // its own line, not that of the canonical key
		in.View = instance.Rejected
		say("another key already names %s; delete this one", e.Key.Address)
	case !e.good:
		in.View = instance.Rejected
		say("%s", e.problem)
	case v.Elsewhere(&e.rec):
		in.View = instance.Elsewhere
		say(verify.OtherFleet+"%s", instance.Printable(strings.Join(e.rec.Proxies, ", "), 300))
	case v.Refuses(e.Key, e.rec) != nil:
		in.View = instance.Rejected
		say("%s", instance.Printable(v.Refuses(e.Key, e.rec).Error(), 300))
	default:
		if e.problem != "" {
			say("%s", e.describe())
		}
		v.Apply(in, v.Instances[e.Key], say)
		if e.absent != nil {
			e.absent.show(in, e.pickable(), say)
		}
	}
	if t.clashes(e) {
		say("registered in both roles, and not everywhere with kv_role kv_both")
	}
	if override != nil {
		t.applyOverride(in, e, override, say)
	}
	in.Reason = strings.Join(why, "; ")
	return in
}

func pendingInstance(e, override *entry, waiting verify.Wait) *instance.Instance {
	in := e.instance()
	in.View = instance.Pending
	if e.good {
		in.Record = e.pending.FullRecord(e.Key)
	}
	switch {
	case e.shadowed:
		in.Address = instance.Printable(e.Name.Address, 300)
		in.Reason = "another key already waits for " + e.Key.Address
	case !e.good:
		in.Reason = e.problem
	case override != nil && override.good && override.override.State == instance.Removed:
		in.Intent = instance.Removed
		in.Reason = "removed by an operator: it will not be added until that is lifted"
	case waiting.ModRevision == e.mod && waiting.Reason != "":
		in.Reason = waiting.Reason
	default:
		in.Reason = "waits for the instance to answer"
	}
	return in
}

// applyOverride applies an override to the instance of an entry.
func (t *table) applyOverride(in *instance.Instance, of, e *entry, say func(string, ...any)) {
	if e.problem != "" {
		if !e.good {
			say("its override cannot be used: %s", e.problem)
			return
		}
		say("of its override, %s", e.describe())
	}
	o := *e.override
	if o.Role != "" {
		if why := t.roleProblem(of); why != "" {
			say("role %s has no effect: %s", o.Role, why)
			o.State, o.Role, o.Auto = "", "", false
		}
	}
	in.Intent, in.OnlyRole, in.AutoRole = o.State, o.Role, o.Auto
	if o.MoveAfter != nil && o.State == instance.Drain {
		in.MoveAfter = new(time.Duration(*o.MoveAfter) * time.Second)
	}
	if o.Weight != nil {
		in.Record.Weight, in.TimedWeight = new(*o.Weight), e.leased != 0
	}
	if o.State == "" {
		return
	}
	if e.absent != nil && e.absent.kind == kept {
		defer say("%s", "of that, "+e.absent.reason(true))
	}
	text := string(o.State)
	if o.Role != "" {
		text = "role " + string(o.Role)
	}
	if o.By != "" {
		text += " by " + instance.Printable(o.By, 80)
	}
	if o.Reason != "" {
		text += ": " + instance.Printable(o.Reason, 200)
	}
	say("%s", text)
}
