package watch

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// VerifiedFacts is what this process found out by asking the instances itself.
// The zero value is right for a reader that asks nobody.
type VerifiedFacts struct {
	// Model must be served by every instance; "" accepts any. It is compared as
	// design says: any id or root, the last path component is enough.
	Model string
	// Probing tells that whoever builds the snapshot will ask instances whose
	// record does not list the model. Without it such an instance is rejected
	// at once, since its root names, which could match, stay unknown.
	Probing bool
	// Proxy is the name of the proxy whose fleet is wanted: records of others are
	// shown as elsewhere. "" takes all.
	Proxy string
	// Check refuses records that the reader cannot use; nil refuses none.
	Check func(instance.Key, instance.Record) error
	// Learns tells the records that say nothing of their engine ids, although those
	// are needed: their engines are asked, and again and again, as nobody tells when
	// one has begun a new life. nil: none does.
	Learns func(instance.Key, instance.Record) bool
	// Instances holds the answers, by membership.
	Instances map[instance.Key]*Verification
	// Pending says why a pending add is still pending.
	Pending map[instance.Key]Wait
}

// Wait says why the pending add of one revision still waits.
type Wait struct {
	ModRevision int64
	Reason      string // printable
}

// Verification is the outcome of asking one instance. It is immutable.
type Verification struct {
	// Incarnation is the life of the engine that was asked; the answer counts
	// for no other.
	Incarnation string
	// Facts is what it answered; nil if it did not.
	Facts *instance.Facts
	// Mismatch tells that it answered and serves another model.
	Mismatch bool
	// Reason says in words what is missing, printable; "" when nothing is.
	Reason string
}

// ok tells that the instance answered and serves the right model.
func (v *Verification) ok() bool { return v != nil && v.Facts != nil && !v.Mismatch }

// Build turns one listing of the membership into a snapshot. It is a pure
// function: equal arguments give equal snapshots. kvs may hold any keys, those
// that say nothing about membership are skipped. prev gives the last good
// record of instances whose value cannot be used now; it may be nil.
func Build(l schema.Layout, kvs []*mvccpb.KeyValue, revision int64, prev *instance.Snapshot, verified VerifiedFacts) *instance.Snapshot {
	t := newTable(l)
	if prev != nil {
		for _, in := range prev.All() {
			if in.View == instance.Rejected || in.View == instance.Pending {
				continue
			}
			n := schema.Name{Kind: schema.KindInstance, Role: in.Role, Address: in.Address}
			t.entries[n] = &entry{Name: n, Key: in.Key, create: in.CreateRevision, good: true, rec: in.Record, bare: in.Bare}
		}
	}
	t.load(kvs, revision)
	return t.snapshot(verified)
}

// elsewhere tells that a record belongs to the fleet of other proxies.
func (v *VerifiedFacts) elsewhere(rec *instance.Record) bool {
	return v.Proxy != "" && !rec.For(v.Proxy)
}

func (v *VerifiedFacts) refuses(k instance.Key, rec instance.Record) error {
	if v.Check == nil {
		return nil
	}
	return v.Check(k, rec)
}

func (v *VerifiedFacts) learns(k instance.Key, rec instance.Record) bool {
	return v.Learns != nil && v.Learns(k, rec)
}

// surroundings are what an instance is made of besides its own entry.
type surroundings struct {
	override *entry
	answer   *Verification
	waiting  Wait
	clash    bool
	shadowed bool
}

// snapshot gives the instances at the table's revision. Those that nothing has
// changed since the last snapshot are shared with it. All snapshots of a table are
// made with the same Model and Probing, and whoever changes the facts touches the
// instance.
func (t *table) snapshot(v VerifiedFacts) *instance.Snapshot {
	// Entries that moved one by one would cost more than going through all.
	if len(t.stale)+len(t.dropped) > fewStale+len(t.order)/256 {
		t.renewed = true
	}
	find := t.finder()
	if t.renewed {
		all := make([]*instance.Instance, 0, len(t.order))
		for _, e := range t.order {
			if e.Kind == schema.KindOverride {
				continue
			}
			if e.in == nil || e.old {
				t.show(e, v, find)
			}
			all = append(all, e.in)
		}
		t.draft.Reset(all)
	} else {
		for _, in := range t.dropped {
			t.draft.Replace(in, nil)
		}
		for _, e := range t.stale {
			if !e.old || t.entries[e.Name] != e {
				continue // another one has taken its place, or nobody
			}
			was := e.in
			t.show(e, v, find)
			t.draft.Replace(was, e.in)
		}
	}
	clear(t.stale) // nothing is kept alive by what is only noted here
	clear(t.dropped)
	t.renewed, t.stale, t.dropped = false, t.stale[:0], t.dropped[:0]
	return t.draft.Snapshot(t.revision)
}

// fewStale is how many entries are shown anew one by one in any case.
const fewStale = 16

// finder finds the entry that stands for a name, spelled in whatever way.
func (t *table) finder() func(schema.Name) *entry {
	alias := t.aliases()
	return func(n schema.Name) *entry {
		if e, ok := t.entries[n]; ok {
			return e
		}
		return alias[n]
	}
}

// show makes the instance of an entry anew.
func (t *table) show(e *entry, v VerifiedFacts, find func(schema.Name) *entry) {
	var c surroundings
	if e.Aliased {
		other := find(schema.Name{Kind: e.Kind, Role: e.Role, Address: e.Key.Address})
		c.shadowed = other != nil && other != e
	}
	c.override = find(schema.Name{Kind: schema.KindOverride, Role: e.Role, Address: e.Key.Address})
	if e.Kind == schema.KindPending {
		c.waiting = v.Pending[e.Key]
		e.in = pendingInstance(e, c)
	} else {
		c.answer = v.Instances[e.Key]
		c.clash = t.clashes(e, find)
		e.in = recordInstance(e, c, v)
	}
	e.old, e.shadowed = false, c.shadowed
	t.judge(e)
	t.tell(e)
}

// aliases finds keys that are not spelled in the canonical way, such as
// localhost:8100. They count as what they mean, unless the canonical key is
// there too; of several the first in byte order counts.
func (t *table) aliases() map[schema.Name]*entry {
	if t.aliased == 0 {
		return nil
	}
	alias := make(map[schema.Name]*entry, t.aliased)
	for _, e := range t.order {
		if !e.Aliased || !e.good {
			continue
		}
		n := schema.Name{Kind: e.Kind, Role: e.Role, Address: e.Key.Address}
		if old, ok := alias[n]; !ok || e.Name.Address < old.Name.Address {
			alias[n] = e
		}
	}
	return alias
}

// clashes tells that an address stands under both roles although its records
// do not say that one engine serves both. It is a warning only: a wrong guess
// must not take capacity away.
func (t *table) clashes(e *entry, find func(schema.Name) *entry) bool {
	other := instance.Prefill
	if e.Role == instance.Prefill {
		other = instance.Decode
	}
	o := find(schema.Name{Kind: schema.KindInstance, Role: other, Address: e.Key.Address})
	if o == nil || !o.good || !e.good {
		return false
	}
	fine := func(e *entry) bool { return e.leased == 0 || e.rec.KVRole == "kv_both" }
	return !fine(e) || !fine(o)
}

// incarnation is that of the instance shown for the entry.
func (e *entry) incarnation() string { return e.instance().Incarnation() }

func (e *entry) instance() *instance.Instance {
	return &instance.Instance{
		Key: e.Key, Record: e.rec, Bare: e.bare,
		Lease: e.leased, CreateRevision: e.create, ModRevision: e.mod, Version: e.version,
	}
}

// recordInstance applies the three lists in their order: what the record says,
// what this process knows, what an operator wants.
func recordInstance(e *entry, c surroundings, v VerifiedFacts) *instance.Instance {
	in := e.instance()
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }

	switch {
	case c.shadowed:
		in.Address = instance.Printable(e.Name.Address, 300) // its own line, not that of the canonical key
		in.View = instance.Rejected
		say("another key already names %s; delete this one", e.Key.Address)
	case !e.good:
		in.View = instance.Rejected
		say("%s", e.problem)
	case v.elsewhere(&e.rec):
		in.View = instance.Elsewhere
		say("it belongs to the fleet of %s", instance.Printable(strings.Join(e.rec.Proxies, ", "), 300))
	case v.refuses(e.Key, e.rec) != nil:
		in.View = instance.Rejected
		say("%s", instance.Printable(v.refuses(e.Key, e.rec).Error(), 300))
	default:
		if e.problem != "" {
			say("%s", e.describe())
		}
		verify(in, c.answer, v, say)
		if e.absent != nil {
			e.absent.show(in, say)
		}
	}
	if c.clash {
		say("registered in both roles, and not everywhere with kv_role kv_both")
	}
	if o := c.override; o != nil {
		applyOverride(in, o, say)
	}
	in.Reason = strings.Join(why, "; ")
	return in
}

// verify decides whether the models of an instance are known and the right ones.
func verify(in *instance.Instance, answer *Verification, v VerifiedFacts, say func(string, ...any)) {
	if answer != nil && answer.Incarnation != in.Incarnation() {
		answer = nil
	}
	listed, learns := len(in.Record.Models) > 0, v.learns(in.Key, in.Record)
	if listed && !learns && (&instance.Facts{Models: in.Record.Models}).Serves(v.Model, false) {
		in.Verified = true
		return
	}
	switch {
	case answer.ok():
		in.Verified = true
		if !listed {
			in.Record = withFacts(in.Record, *answer.Facts)
		}
		if learns {
			in.Record = withEngineIDs(in.Record, answer.Facts.EngineIDs)
		}
		// What was found out may be what the record is refused for.
		if err := v.refuses(in.Key, in.Record); err != nil {
			in.Verified, in.View = false, instance.Rejected
			say("%s", instance.Printable(err.Error(), 300))
		}
	case answer != nil && answer.Mismatch:
		in.View = instance.Rejected
		say("%s", answer.Reason)
	case listed && !learns && !v.Probing:
		in.View = instance.Rejected
		say("%s", wrongModel(in.Record.Models, v.Model))
	default:
		in.View = instance.Unverified
		if answer != nil && answer.Reason != "" {
			say("%s", answer.Reason)
		} else if learns {
			say("not verified yet: waits for an answer to /v1/models and of its bootstrap server")
		} else {
			say("not verified yet: waits for an answer to /v1/models")
		}
	}
}

// withFacts completes a record with what its engine told. What the record says
// itself stays.
func withFacts(rec instance.Record, f instance.Facts) instance.Record {
	rec.Models = f.Models
	if rec.MaxModelLen == 0 {
		rec.MaxModelLen = f.MaxModelLen
	}
	if rec.Version == "" {
		rec.Version = f.Version
	}
	if rec.DPSize == 0 && f.DPSize > 1 {
		rec.DPSize = f.DPSize
	}
	if rec.Transfer == "" {
		rec.Transfer = f.Transfer
	}
	if rec.StartedAt == nil && !f.StartedAt.IsZero() {
		rec.StartedAt = &f.StartedAt
	}
	return rec
}

func pendingInstance(e *entry, c surroundings) *instance.Instance {
	in := e.instance()
	in.View = instance.Pending
	if e.good {
		in.Record = e.pending.FullRecord(e.Key)
	}
	switch {
	case c.shadowed:
		in.Address = instance.Printable(e.Name.Address, 300)
		in.Reason = "another key already waits for " + e.Key.Address
	case !e.good:
		in.Reason = e.problem
	case c.override != nil && c.override.good && c.override.override.State == instance.Removed:
		in.Intent = instance.Removed
		in.Reason = "removed by an operator: it will not be added while that stands"
	case c.waiting.ModRevision == e.mod && c.waiting.Reason != "":
		in.Reason = c.waiting.Reason
	default:
		in.Reason = "waits for the instance to answer"
	}
	return in
}

func applyOverride(in *instance.Instance, e *entry, say func(string, ...any)) {
	if e.problem != "" {
		if !e.good {
			say("its override cannot be used: %s", e.problem)
			return
		}
		say("of its override, %s", e.describe())
	}
	o := e.override
	in.Intent = o.State
	if o.Weight != nil {
		w := *o.Weight
		in.Record.Weight = &w
	}
	if o.State == "" {
		return
	}
	if e.absent != nil && e.absent.kind == kept {
		defer say("%s", "of that, "+e.absent.reason())
	}
	text := string(o.State)
	if o.By != "" {
		text += " by " + instance.Printable(o.By, 80)
	}
	if o.Reason != "" {
		text += ": " + instance.Printable(o.Reason, 200)
	}
	say("%s", text)
}

func wrongModel(have []string, want string) string {
	shown := have
	if len(shown) > 3 {
		shown = shown[:3]
	}
	return fmt.Sprintf("serves %s, not %s", instance.Printable(strings.Join(shown, ", "), 200), instance.Printable(want, 200))
}

// withEngineIDs completes a record with what the bootstrap server of its engine told.
// The id of its first rank, which is another one in each life, names the incarnation
// where the record names none.
func withEngineIDs(rec instance.Record, ids map[string]string) instance.Record {
	rec.EngineIDs = ids
	if rec.DPSize == 0 && len(ids) > 1 {
		rec.DPSize = len(ids)
	}
	if rec.ID == "" {
		rec.ID = (&instance.Instance{Record: rec}).EngineID(0)
	}
	return rec
}
