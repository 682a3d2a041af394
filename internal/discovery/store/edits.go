package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Edits changes several keys of operators in one transaction: static instances, overrides and
// documents. It reads their former values from the audit log.
type Edits struct{ *writer }

// Change is the effect of an audited transaction on one key of operators.
type Change struct {
	Key    string  `json:"key"`              // below the root of the layout
	Before *string `json:"before,omitempty"` // nil: there was no key
	After  *string `json:"after,omitempty"`  // nil: deleted
	// BeforeEnds and AfterEnds report whether the value has a lease, with which it expires.
	BeforeEnds bool `json:"before_ends,omitempty"`
	AfterEnds  bool `json:"after_ends,omitempty"`
}

const (
	// MaxEdits is the largest number of keys in one transaction. etcd's limit is 128 operations.
	MaxEdits = 100
	// MaxEditBytes is the largest size of their values together. etcd's limit for a request is 1.5 MiB.
	MaxEditBytes = 1 << 20
)

// Errors of Edits.
var (
	ErrTooMany = errors.New("too many changes for one transaction")
	// ErrConflict means that another program has changed a key.
	ErrConflict = errors.New("changed by another program")
	// ErrNotRecorded means that the audit log lacks values.
	ErrNotRecorded = errors.New("cannot be reconstructed")
)

// changesOf returns the changes of operations, compared with the keys as they were read. Records
// with a lease belong to their agents and are omitted. ends reports whether the keys get a lease.
func (w *writer) changesOf(ops []clientv3.Op, ends bool, before map[string]*mvccpb.KeyValue) []Change {
	changes := []Change{}
	for _, op := range ops {
		key := string(op.KeyBytes())
		n := w.layout.Parse(key)
		if n.Kind != schema.KindInstance && n.Kind != schema.KindOverride && n.Kind != schema.KindDocument {
			continue
		}
		c := Change{Key: strings.TrimPrefix(key, w.layout.Root()), AfterEnds: ends}
		if was := before[key]; was != nil && (n.Kind != schema.KindInstance || was.Lease == 0) {
			c.Before, c.BeforeEnds = new(string(was.Value)), was.Lease != 0
		}
		if op.IsPut() {
			c.After = new(string(op.ValueBytes()))
		}
		if c.Before != nil || c.After != nil {
			changes = append(changes, c)
		}
	}
	return changes
}

// binary reports whether a value is not valid UTF-8, which JSON cannot hold.
func (c Change) binary() bool {
	return c.Before != nil && !utf8.ValidString(*c.Before) || c.After != nil && !utf8.ValidString(*c.After)
}

// Between returns the changes from one revision to another by the audit log, one for each key,
// ordered by key. Changes that were undone in between are omitted. to 0 is the newest revision. gap
// describes since when the log has entries, "" if it begins before from. The error wraps
// ErrNotRecorded if an entry of that time lacks values.
func (s *Edits) Between(ctx context.Context, from, to int64) (out []Change, gap string, err error) {
	entries, err := (&Reader{s.client}).AuditLog(ctx, 0)
	if err != nil {
		return nil, "", err
	}
	slices.Reverse(entries)
	switch {
	case len(entries) == 0:
		gap = "the audit log is empty; it keeps 30 days"
	case from >= entries[0].Revision-1:
	case int64(len(entries)) >= s.maxAudit-auditTrim:
		return nil, "", fmt.Errorf("%w: the audit log begins at revision %d", ErrNotRecorded, entries[0].Revision)
	default: // whether there were earlier entries, whose leases have ended, cannot be known
		gap = fmt.Sprintf("the audit log begins at revision %d (%s); it keeps 30 days",
			entries[0].Revision, entries[0].At.UTC().Format(time.DateOnly))
	}
	all, ends := map[string]*Change{}, map[string]bool{}
	for i := range entries {
		e := &entries[i]
		switch {
		case to > 0 && e.Revision > to:
			continue
		case e.Revision <= from:
			for _, c := range e.Changes {
				ends[c.Key] = c.AfterEnds
			}
			continue
		case e.Changes == nil:
			return nil, "", fmt.Errorf("%w: the entry of revision %d (%s of %s/%s by %s) lacks the values, because they are too large or its writer is of an older release",
				ErrNotRecorded, e.Revision, instance.Printable(e.What, 40), e.Role, instance.Printable(e.Address, 300), instance.Printable(e.Who, 80))
		}
		for _, c := range e.Changes {
			if first := all[c.Key]; first != nil {
				first.After, first.AfterEnds = c.After, c.AfterEnds
			} else {
				c.BeforeEnds = c.BeforeEnds || ends[c.Key] && c.Before != nil
				all[c.Key] = &c
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if c := all[key]; !equal(c.Before, c.After) || c.BeforeEnds != c.AfterEnds {
			out = append(out, *c)
		}
	}
	return out, gap, nil
}

func equal(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// Fleet has all keys of the membership, as they were read at one revision.
type Fleet struct {
	Revision int64
	layout   schema.Layout
	kvs      map[string]*mvccpb.KeyValue // by the key below the root
	moves    *mvccpb.KeyValue            // last change of a role
}

// Value returns the value of a key, nil for none, and whether it has a lease.
func (f *Fleet) Value(key string) (value *string, leased bool) {
	kv := f.kvs[key]
	if kv == nil {
		return nil, false
	}
	return new(string(kv.Value)), kv.Lease != 0
}

// Keys returns the parsed keys, sorted.
func (f *Fleet) Keys() []schema.Name {
	var out []schema.Name
	for _, key := range slices.Sorted(maps.Keys(f.kvs)) {
		out = append(out, f.layout.Parse(f.layout.Root()+key))
	}
	return out
}

// Read reads all keys.
func (s *Edits) Read(ctx context.Context) (*Fleet, error) {
	version, err := s.get(ctx, "check the schema key", s.layout.Schema())
	if err != nil {
		return nil, err
	}
	if err := etcd.CheckSchema(s.layout, etcd.Single(version)); err != nil {
		return nil, err
	}
	moves, err := s.lastMove(ctx) // first: a later change is in conflict
	if err != nil {
		return nil, err
	}
	got, err := etcd.List(ctx, etcd.CallTimeout, s.cli, s.layout, true)
	if err != nil {
		return nil, err
	}
	f := &Fleet{Revision: got.Revision, layout: s.layout, kvs: map[string]*mvccpb.KeyValue{}, moves: moves}
	for _, kv := range got.KVs {
		f.kvs[strings.TrimPrefix(string(kv.Key), s.layout.Root())] = kv
	}
	return f, nil
}

// Changes returns the changes that values would make, ordered by key.
func (f *Fleet) Changes(values map[string]*string) []Change {
	out := make([]Change, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		is, leased := f.Value(key)
		out = append(out, Change{Key: key, Before: is, BeforeEnds: leased, After: values[key]})
	}
	return out
}

// Update returns the changes with their last values replaced by those of f, without those that have
// no effect any more.
func (f *Fleet) Update(changes []Change) []Change {
	var out []Change
	for _, c := range changes {
		if c.After, c.AfterEnds = f.Value(c.Key); !equal(c.Before, c.After) || c.BeforeEnds != c.AfterEnds {
			out = append(out, c)
		}
	}
	return out
}

// Undo returns the values that undo changes: nil deletes the key. The error names every key that
// another program has changed since, or whose former value had a time limit.
func (f *Fleet) Undo(changes []Change) (map[string]*string, error) {
	undo, bad := map[string]*string{}, []error{}
	for _, c := range changes {
		is, leased := f.Value(c.Key)
		switch {
		case equal(is, c.Before) && !leased:
		case !equal(is, c.After) && (is != nil || !c.AfterEnds):
			at := "deleted since"
			if kv := f.kvs[c.Key]; kv != nil {
				at = fmt.Sprintf("at revision %d", kv.ModRevision)
			}
			bad = append(bad, fmt.Errorf("%s: %w, %s", c.Key, ErrConflict, at))
		case c.BeforeEnds:
			bad = append(bad, fmt.Errorf("%s: %w: its former value had a time limit", c.Key, ErrNotRecorded))
		default:
			undo[c.Key] = c.Before
		}
	}
	return undo, errors.Join(bad...)
}

// roleOf returns the role in which an override keeps an engine, "" for none.
func roleOf(value *string) instance.Role {
	if value == nil {
		return ""
	}
	o, _ := schema.DecodeOverride([]byte(*value))
	return o.Role
}

// Write writes values, by key below the root, in one transaction with an audit entry; nil deletes a
// key. It writes nothing if one of the keys has changed since f was read, or any role if values
// change one: the error wraps ErrConflict and names the keys. It returns the revision, 0 if there
// is nothing to write.
func (s *Edits) Write(ctx context.Context, f *Fleet, values map[string]*string, what, reason string) (int64, error) {
	switch n := len(values); {
	case n == 0:
		return 0, nil
	case n > MaxEdits:
		return 0, fmt.Errorf("%w: %d, the limit is %d", ErrTooMany, n, MaxEdits)
	}
	if err := s.ensureSchema(ctx); err != nil {
		return 0, err
	}
	var compares []clientv3.Cmp
	var ops, gets []clientv3.Op
	before := map[string]*mvccpb.KeyValue{}
	keys := slices.Sorted(maps.Keys(values))
	k, added := instance.Key{}, []instance.Key(nil)
	var move *schema.Move // the last change of a role in values
	for i, name := range keys {
		key := s.layout.Root() + name
		before[key] = f.kvs[name]
		compares, gets = append(compares, etcd.Unchanged(key, f.kvs[name])), append(gets, clientv3.OpGet(key, clientv3.WithKeysOnly()))
		n := s.layout.Parse(key)
		of := n.Key
		if i == 0 || k == of {
			k = of
		} else {
			k = instance.Key{}
		}
		if n.Kind == schema.KindOverride && f.kvs[name] == nil && values[name] != nil {
			added = append(added, of)
		}
		was, _ := f.Value(name)
		if is := roleOf(values[name]); n.Kind == schema.KindOverride && is != roleOf(was) {
			move = &schema.Move{V: 1, Role: cmp.Or(is, instance.Both), Address: n.Address, By: s.by(ctx), Reason: cut(reason, maxWhy)}
		}
		if value := values[name]; value == nil {
			ops = append(ops, clientv3.OpDelete(key))
		} else {
			ops = append(ops, clientv3.OpPut(key, *value))
		}
	}
	if len(added) > 0 {
		if err := s.kept(ctx, schema.KindOverride, added...); err != nil {
			return 0, err
		}
	}
	p := plan{what: what, changes: s.changesOf(ops, false, before)}
	if move != nil {
		if err := s.move(&p, f.moves, *move); err != nil {
			return 0, err
		}
	}
	audit, err := s.audit(ctx, k, p, reason)
	if err != nil {
		return 0, err
	}
	resp, err := s.commit(ctx, what, append(compares, p.compares...), slices.Concat(audit, ops, p.once), gets...)
	if err != nil {
		return 0, err
	}
	if resp.Succeeded {
		if move != nil { // for the next part of a large change; a dry run has not changed it
			if last, err := s.lastMove(ctx); err == nil {
				f.moves = last
			}
		}
		return resp.Header.Revision, nil
	}
	var changed []error
	for i, r := range resp.Responses {
		if now := etcd.Single(r.GetResponseRange().Kvs); now.GetModRevision() != f.kvs[keys[i]].GetModRevision() {
			changed = append(changed, fmt.Errorf("%s: %w", keys[i], ErrConflict))
		}
	}
	if changed == nil { // the comparison of the last change of a role
		return 0, fmt.Errorf("%w: %w", ErrConflict, ErrMoved)
	}
	return 0, errors.Join(changed...)
}
