package watch

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// table is the decoded membership, one entry for each key in etcd. It does no I/O and has one
// owner. A list fills it, events change it, and snapshots are derived from it.
type table struct {
	layout   schema.Layout
	revision int64 // of the store, up to which the table is complete
	applied  int64 // highest mod_revision seen under the prefixes it reads
	entries  map[schema.Name]*entry
	// order holds all entries in the order in which snapshots list them, so that
	// making a snapshot sorts nothing and walks no map.
	order []*entry

	unsaved bool // the file has to be written soon

	// dirty reports whether a view may differ from the last publication. Every change of the table
	// sets it.
	dirty bool

	documents *instance.Documents // of the last view

	// onKeyLost returns the absence of an entry whose key is missing since a revision;
	// nil drops the entry. If the function is nil, all such entries are dropped.
	onKeyLost func(e *entry, lostAt int64) *absence
	counts
}

// counts summarize all entries, and are updated with each change.
type counts struct {
	absent map[schema.Name]*entry // those that etcd does not hold
	census map[instance.Role]census
	leases map[int64]int // number of keys that etcd holds, by lease

	aliased int // entries whose address is not in canonical form
	// alias has the effective ones, by their canonical names; nil: not computed yet.
	alias map[schema.Name]*entry
}

func newCounts() counts {
	return counts{absent: make(map[schema.Name]*entry), census: make(map[instance.Role]census), leases: make(map[int64]int)}
}

// add adds an entry to the counts, or removes it with -1.
func (c *counts) add(e *entry, by int) {
	if e.Aliased {
		c.aliased, c.alias = c.aliased+by, nil
	}
	switch {
	case e.absent == nil && e.leased != 0:
		if c.leases[e.leased] += by; c.leases[e.leased] == 0 {
			delete(c.leases, e.leased)
		}
	case e.absent != nil:
		if by > 0 {
			c.absent[e.Name] = e
		} else {
			delete(c.absent, e.Name)
		}
	}
	if e.Kind != schema.KindInstance {
		return
	}
	r := c.census[e.Role]
	switch {
	case e.absent == nil:
		r.present += by
	case e.absent.kind == loaded || e.absent.kind == kept || e.absent.kind == unwritten:
		r.other += by
	default:
		r.absent += by
	}
	c.census[e.Role] = r
}

func newTable(l schema.Layout) *table {
	return &table{layout: l, entries: make(map[schema.Name]*entry), counts: newCounts()}
}

// entry is one key. Once it is in the table, only absent and the fields from in on change.
type entry struct {
	schema.Name
	Key                          instance.Key // canonical address, or the printable one if it is bad
	create, mod, version, leased int64        // all 0 if it is unwritten
	// originRev identifies the incarnation of an instance whose record does not: usually create. An
	// unwritten instance keeps its originRev when it is written.
	originRev int64

	// Aliased reports whether the address is valid but not in canonical form, as in localhost:8100.
	Aliased bool
	// problem is the reason why the current value, or the key itself, cannot be used;
	// good reports whether the decoded fields hold a value, maybe an older one.
	problem string
	good    bool
	value   []byte // source of the decoded fields

	absent *absence // nil: etcd holds the key, as far as is known

	rec      instance.Record    // of an instance
	pending  *schema.PendingAdd // of a good pending add
	override *schema.Override   // of a good override

	in       *instance.Instance // of the last view, perhaps of an earlier value
	shadowed bool               // another key for the same instance took precedence in the last view
	learns   bool               // of an instance, see verify.Facts.MustLearn
	old      bool               // in is not up to date
}

// compare orders entries as snapshots do: prefill first, by address.
func (e *entry) compare(o *entry) int {
	if c := e.Key.Compare(o.Key); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(e.Kind, o.Kind), cmp.Compare(e.Name.Address, o.Name.Address))
}

// decodeEntry decodes one key. prev is the previous entry of the key: if the value
// cannot be used, the last good one stays active, provided that the key was
// not deleted in between.
func decodeEntry(n schema.Name, kv *mvccpb.KeyValue, prev *entry) *entry {
	e := &entry{
		Name: n, create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, leased: kv.Lease, originRev: kv.CreateRevision,
	}
	if prev != nil && (prev.create == e.create || prev.mod == 0) {
		e.originRev = prev.originRev
	}
	address, err := n.Address, error(nil)
	if n.Kind != schema.KindDocument {
		address, err = instance.ParseAddress(n.Address)
	}
	if err != nil {
		e.Key = instance.Key{Role: n.Role, Address: instance.Printable(n.Address, 120)}
		e.problem = "the key has a bad address: " + err.Error()
		return e
	}
	e.Aliased = address != n.Address
	e.Key = instance.Key{Role: n.Role, Address: address}
	switch n.Kind {
	case schema.KindInstance:
		e.rec, _, err = schema.DecodeRecord(e.Key, kv.Value)
	case schema.KindPending:
		if e.Aliased {
			e.problem = "the key of a pending add must be spelled " + address
			return e
		}
		var p schema.PendingAdd
		p, err = schema.DecodePending(e.Key, kv.Value)
		e.pending = &p
	case schema.KindOverride:
		var o schema.Override
		o, err = schema.DecodeOverride(kv.Value)
		e.override = &o
	case schema.KindDocument:
		err = schema.CheckDocument(e.Key, kv.Value)
	}
	if err == nil {
		e.good, e.value = true, kv.Value
		return e
	}
	e.problem, e.pending, e.override = schema.ReasonOf(err), nil, nil
	if prev != nil && prev.good && prev.create == e.create {
		e.value = prev.value
		e.good, e.rec, e.pending, e.override = true, prev.rec, prev.pending, prev.override
	}
	return e
}

// KeyOf returns the canonical key of the instance that a key in etcd names. aliased reports that
// the address is valid but not in canonical form.
func KeyOf(n schema.Name, kv *mvccpb.KeyValue) (k instance.Key, aliased bool) {
	e := decodeEntry(n, kv, nil)
	return e.Key, e.Aliased
}

// same reports whether an entry is at exactly this version of its key.
func (e *entry) same(kv *mvccpb.KeyValue) bool { return e.sameKey(kv) && e.leased == kv.Lease }

// sameKey is like same for a key that was requested without its value: etcd 3.7
// answers that from its index of keys, which has no leases. Only a put changes the
// lease of a key, and it changes the revision.
func (e *entry) sameKey(kv *mvccpb.KeyValue) bool {
	return e.mod == kv.ModRevision && e.create == kv.CreateRevision && e.version == kv.Version &&
		(kv.Lease == 0 || e.leased == kv.Lease)
}

// load replaces what etcd holds by one list that is complete at revision. Keys
// that did not change keep their entries, and onKeyLost decides about those that
// are not in the list.
func (t *table) load(kvs []*mvccpb.KeyValue, revision int64) {
	old := t.entries
	t.entries = make(map[schema.Name]*entry, len(kvs))
	t.order = make([]*entry, 0, len(kvs))
	t.counts = newCounts()
	applied := int64(0)
	for _, kv := range kvs {
		n := t.layout.Parse(string(kv.Key))
		if n.Kind == schema.KindOther {
			continue
		}
		applied = max(applied, kv.ModRevision)
		e := old[n]
		// The disk holds the last good value under the revision of an unusable one.
		if e == nil || !e.same(kv) || e.problem == "" && !bytes.Equal(e.value, kv.Value) {
			prev := e
			e = decodeEntry(n, kv, prev)
			if prev != nil {
				e.in = prev.in // as shown until now
			}
		}
		e.absent = nil
		t.add(e)
	}
	for n, e := range old {
		if _, ok := t.entries[n]; ok {
			continue
		}
		if t.onKeyLost != nil && (e.absent == nil || e.absent.kind == loaded) {
			e.absent = t.onKeyLost(e, revision)
		}
		if e.absent != nil {
			t.add(e)
		}
	}
	t.sort()
	t.touchAll()
	if revision >= t.revision {
		applied = max(applied, t.applied)
	} // else it is another store, and its revisions cannot be compared with earlier ones
	t.revision, t.applied = revision, applied
}

func (t *table) sort() { slices.SortFunc(t.order, (*entry).compare) }

// add adds an entry at the end of the order.
func (t *table) add(e *entry) {
	t.entries[e.Name] = e
	t.order = append(t.order, e)
	t.counts.add(e, 1)
}

// put applies one PUT. A revision that the table has already is not applied
// again, so replays are harmless. It reports whether anything changed.
func (t *table) put(kv *mvccpb.KeyValue) bool {
	n := t.layout.Parse(string(kv.Key))
	prev := t.entries[n]
	if n.Kind == schema.KindOther || kv.ModRevision < t.revision || prev.knows(kv.ModRevision) {
		return false
	}
	t.applied = max(t.applied, kv.ModRevision)
	e := decodeEntry(n, kv, prev)
	t.changed(prev)
	t.changed(e)
	at, found := slices.BinarySearchFunc(t.order, e, (*entry).compare)
	if found {
		e.in, e.shadowed = prev.in, prev.shadowed // as shown until now
		t.counts.add(prev, -1)
		t.order[at] = e
	} else {
		t.membershipChanged(e)
		t.order = slices.Insert(t.order, at, e)
	}
	t.entries[n] = e
	t.counts.add(e, 1)
	e.old = true // touch does not find a key with a bad address
	t.touch(e.Key)
	return true
}

// knows reports whether an entry is as new as a revision of its key, or newer.
func (e *entry) knows(revision int64) bool {
	switch {
	case e == nil:
		return false
	case e.absent != nil:
		return e.absent.lostAt >= revision
	default:
		return e.mod >= revision
	}
}

// remove applies one DELETE, whose kv carries the key and the revision of the
// deletion. It reports whether anything changed.
func (t *table) remove(kv *mvccpb.KeyValue) bool {
	n := t.layout.Parse(string(kv.Key))
	e, ok := t.entries[n]
	if !ok || e.absent != nil || e.mod >= kv.ModRevision {
		return false
	}
	t.applied = max(t.applied, kv.ModRevision)
	if t.onKeyLost != nil {
		if a := t.onKeyLost(e, kv.ModRevision); a != nil {
			t.mark(e, a)
			return true
		}
	}
	t.drop(e)
	return true
}

// drop removes an entry.
func (t *table) drop(e *entry) {
	t.membershipChanged(e)
	t.counts.add(e, -1)
	delete(t.entries, e.Name)
	if at, found := slices.BinarySearchFunc(t.order, e, (*entry).compare); found {
		t.order = slices.Delete(t.order, at, at+1)
	}
	t.touch(e.Key)
}

// mark sets the absence of an entry, or changes it.
func (t *table) mark(e *entry, a *absence) {
	t.dirty = true
	t.changed(e)
	unseen := e.absent == nil && a.kind == leaseQueried // it is shown as before
	t.counts.add(e, -1)
	e.absent = a
	t.counts.add(e, 1)
	if !unseen {
		e.old = true // touch does not find a key with a bad address
		t.touch(e.Key)
	}
}

// bad reports whether an entry cannot be used, as of the last view.
func (e *entry) bad() bool { return e.problem != "" || e.in != nil && e.in.View == instance.Rejected }

// describe returns a short text of an entry's problem while an older value is used.
func (e *entry) describe() string {
	return fmt.Sprintf("the value at revision %d cannot be used (%s); the last good value stays active", e.mod, e.problem)
}

// find returns the entry that represents a membership: that of the canonical key,
// or of a key with another spelling.
func (t *table) find(kind schema.Kind, k instance.Key) *entry {
	n := schema.Name{Kind: kind, Key: k}
	if e, ok := t.entries[n]; ok || t.aliased == 0 {
		return e
	}
	if t.alias == nil {
		t.alias = t.aliases()
	}
	return t.alias[n]
}
