package discovery

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// table is the membership as etcd has it, key by key, decoded. It does no I/O
// and has one owner; a list fills it, events change it, and view makes
// snapshots of it.
type table struct {
	layout   Layout
	revision int64 // of the store, up to which the table is complete
	applied  int64 // highest mod_revision seen under the prefixes it reads
	schema   []byte
	entries  map[name]*entry
}

func newTable(l Layout) *table {
	return &table{layout: l, entries: make(map[name]*entry)}
}

// entry is one key. All fields but built are fixed once it is in the table.
type entry struct {
	name
	key                          instance.Key // canonical address, or the printable one if it is bad
	create, mod, version, leased int64

	// aliased tells that the address is good but not spelled in the canonical
	// way, as in localhost:8100.
	aliased bool
	// problem says why the current value, or the key itself, cannot be used;
	// good tells that the decoded fields hold a value, maybe an older one.
	problem string
	good    bool

	rec      instance.Record // of an instance
	bare     bool
	pending  PendingAdd
	override Override

	built built // of the last view
}

// decodeEntry reads one key. prev is what the table held at the key: a value
// that cannot be used leaves the last good one in force, as long as the key was
// not deleted in between.
func decodeEntry(n name, kv *mvccpb.KeyValue, prev *entry) *entry {
	e := &entry{
		name: n, create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, leased: kv.Lease,
	}
	address, err := instance.ParseAddress(n.address)
	if err != nil {
		e.key = instance.Key{Role: n.role, Address: instance.Printable(n.address, 120)}
		e.problem = "the key has a bad address: " + err.Error()
		return e
	}
	e.key = instance.Key{Role: n.role, Address: address}
	e.aliased = address != n.address
	switch n.kind {
	case kindInstance:
		e.rec, e.bare, err = DecodeRecord(e.key, kv.Value)
	case kindPending:
		if e.aliased {
			e.problem = "the key of a pending add must be spelled " + address
			return e
		}
		e.pending, err = DecodePending(e.key, kv.Value)
	case kindOverride:
		e.override, err = DecodeOverride(kv.Value)
	}
	if err == nil {
		e.good = true
		return e
	}
	e.problem = reasonOf(err)
	if prev != nil && prev.good && prev.create == e.create {
		e.good, e.rec, e.bare, e.pending, e.override = true, prev.rec, prev.bare, prev.pending, prev.override
	}
	return e
}

// load replaces everything with one list that is complete at revision. Keys
// that did not change keep their entries.
func (t *table) load(kvs []*mvccpb.KeyValue, revision int64) {
	old := t.entries
	t.entries = make(map[name]*entry, len(kvs))
	t.schema = nil
	for _, kv := range kvs {
		n := t.layout.parse(string(kv.Key))
		switch n.kind {
		case kindOther:
			continue
		case kindSchema:
			t.schema = kv.Value
			continue
		}
		t.applied = max(t.applied, kv.ModRevision)
		prev := old[n]
		if prev != nil && prev.mod == kv.ModRevision && prev.create == kv.CreateRevision &&
			prev.version == kv.Version && prev.leased == kv.Lease {
			t.entries[n] = prev
			continue
		}
		t.entries[n] = decodeEntry(n, kv, prev)
	}
	if revision < t.revision {
		// Another life of the store: what was applied before counts for nothing.
		t.applied = 0
		for _, e := range t.entries {
			t.applied = max(t.applied, e.mod)
		}
	}
	t.revision = revision
}

// put applies one PUT. A revision that the table has already is not applied
// again, so replays are harmless. It tells whether anything changed.
func (t *table) put(kv *mvccpb.KeyValue) bool {
	n := t.layout.parse(string(kv.Key))
	prev := t.entries[n]
	if kv.ModRevision < t.revision || (prev != nil && prev.mod >= kv.ModRevision) {
		return false
	}
	switch n.kind {
	case kindOther:
		return false
	case kindSchema:
		t.schema = kv.Value
		return false
	}
	t.applied = max(t.applied, kv.ModRevision)
	t.entries[n] = decodeEntry(n, kv, prev)
	return true
}

// remove applies one DELETE, whose kv carries the key and the revision of the
// deletion.
func (t *table) remove(kv *mvccpb.KeyValue) bool {
	n := t.layout.parse(string(kv.Key))
	if n.kind == kindSchema {
		t.schema = nil
		return false
	}
	prev, ok := t.entries[n]
	if !ok || prev.mod >= kv.ModRevision {
		return false
	}
	t.applied = max(t.applied, kv.ModRevision)
	delete(t.entries, n)
	return true
}

// advance notes that the table is complete up to revision.
func (t *table) advance(revision int64) { t.revision = max(t.revision, revision) }

// describe is a short text of an entry's trouble while an older value is used.
func (e *entry) describe() string {
	return fmt.Sprintf("the value at revision %d cannot be used (%s); the last good value stays in force", e.mod, e.problem)
}
