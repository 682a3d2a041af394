package store

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Transfer carries what an operator has put into one etcd to another.
type Transfer struct{ *writer }

// KeyKind is the kind of a key of the membership.
type KeyKind string

// The kinds of keys.
const (
	KeyRecord   KeyKind = "record"   // an instance
	KeyPending  KeyKind = "pending"  // an add that waits for its instance
	KeyOverride KeyKind = "override" // an operator's intent
)

// kindOf returns the kind of a key, "" for a key of another kind.
func kindOf(n schema.Name) KeyKind {
	return map[schema.Kind]KeyKind{schema.KindInstance: KeyRecord, schema.KindPending: KeyPending, schema.KindOverride: KeyOverride}[n.Kind]
}

// Carried is one key that is copied from one etcd to another.
type Carried struct {
	Kind  KeyKind
	Key   instance.Key
	Value []byte
	TTL   time.Duration // remaining time of a pending add or an override, 0 for one without a lease
	// Skip is the reason why the key is not copied; "" if it is.
	Skip string
}

// MoveOutcome reports what an import did with one key.
type MoveOutcome string

// The outcomes of an import.
const (
	MoveWritten   MoveOutcome = "written"
	MoveSame      MoveOutcome = "same"    // the very same value is there already
	MoveDiffers   MoveOutcome = "differs" // something else is there and was left alone
	MovePointless MoveOutcome = "moot"    // what is there makes it pointless
)

// Export reads what an operator has put into etcd, all at one revision: static
// records, pending adds, overrides. What agents hold is given with a reason
// to leave it out, and so is what cannot be read. Records come first and
// overrides last, so that an import in this order finds no removal in the way
// that the export brings itself.
func (t *Transfer) Export(ctx context.Context) (entries []Carried, revision int64, err error) {
	got, err := etcd.List(ctx, etcd.CallTimeout, t.cli, t.layout, true)
	if err != nil {
		return nil, 0, err
	}
	version, err := t.get(ctx, "check the schema key", t.layout.Schema())
	if err != nil {
		return nil, 0, err
	}
	if err := etcd.CheckSchema(t.layout, version); err != nil {
		return nil, 0, err
	}
	for _, kv := range got.KVs {
		n := t.layout.Parse(string(kv.Key))
		if kindOf(n) == "" {
			continue
		}
		c := carried(n, kv)
		if c.Skip == "" && kv.Lease != 0 {
			if c.TTL, err = t.left(ctx, clientv3.LeaseID(kv.Lease)); err != nil {
				return nil, 0, err
			}
			if c.TTL <= 0 {
				c.Skip = "its time is up"
			}
		}
		entries = append(entries, c)
	}
	place := map[KeyKind]int{KeyRecord: 0, KeyPending: 1, KeyOverride: 2}
	slices.SortStableFunc(entries, func(a, b Carried) int { return cmp.Compare(place[a.Kind], place[b.Kind]) })
	return entries, got.Revision, nil
}

// carried makes an entry of a key.
func carried(n schema.Name, kv *mvccpb.KeyValue) Carried {
	c := Carried{Kind: kindOf(n), Key: instance.Key{Role: n.Role, Address: n.Address}, Value: kv.Value}
	canonical, err := instance.ParseAddress(n.Address)
	switch {
	case err != nil:
		c.Skip = "bad address: " + schema.ReasonOf(err)
	case canonical != n.Address:
		c.Skip = "spelled in another way than " + canonical + "; put it in again with pdctl add"
	case c.Kind == KeyRecord && kv.Lease != 0:
		c.Skip = "held by a lease: its agent registers it again"
	default:
		if err := c.Check(); err != nil {
			c.Skip = "cannot be used: " + schema.ReasonOf(err)
		}
	}
	return c
}

// Check reports whether the entry may be written: a canonical key, and a value
// that a reader would take.
func (c *Carried) Check() error {
	if err := CheckKey(c.Key); err != nil {
		return err
	}
	var err error
	switch c.Kind {
	case KeyRecord:
		_, _, err = schema.DecodeRecord(c.Key, c.Value)
	case KeyPending:
		_, err = schema.DecodePending(c.Key, c.Value)
	case KeyOverride:
		_, err = schema.DecodeOverride(c.Value)
	default:
		err = schema.Rejectf("%s is no kind of key; use record, pending or override", schema.Quote(string(c.Kind), 40))
	}
	if err == nil && !utf8.Valid(c.Value) {
		err = schema.Rejectf("the value is binary data, not text")
	}
	return err
}

// left is what remains of a lease, 0 if it has ended.
func (t *Transfer) left(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := t.cli.TimeToLive(cctx, id)
	if err != nil {
		return 0, etcd.Explain(ctx, t.cli, "ask for a lease", err, true)
	}
	return max(0, time.Duration(resp.TTL)*time.Second), nil
}

// Import writes one entry, in a transaction with its audit entry, where there
// is nothing at its key; what is there stays. It does not bring back what was
// removed here. With dry it only reports what it would do. It may be repeated.
func (t *Transfer) Import(ctx context.Context, c Carried, reason string, dry bool) (MoveOutcome, error) {
	if err := c.Check(); err != nil {
		return "", err
	}
	var outcome MoveOutcome
	err := t.change(ctx, c.Key, reason, func(f *etcd.Found) (plan, error) {
		p := t.carry(c, f, &outcome)
		if dry {
			return plan{}, nil
		}
		return p, nil
	})
	return outcome, err
}

// carry decides about one entry.
func (t *Transfer) carry(c Carried, f *etcd.Found, outcome *MoveOutcome) plan {
	key, there := t.layout.Instance(c.Key), f.Record
	switch c.Kind {
	case KeyPending:
		key, there = t.layout.Pending(c.Key), f.Pending
	case KeyOverride:
		key, there = t.layout.Override(c.Key), f.Override
	case KeyRecord:
	}
	p := plan{what: "import"}
	*outcome = MoveWritten
	switch {
	case there != nil && bytes.Equal(there.Value, c.Value):
		*outcome = MoveSame
	case c.Kind == KeyRecord && there != nil && there.Lease != 0:
		*outcome = MovePointless // its agent has registered it
	case there != nil:
		*outcome = MoveDiffers
	case c.Kind != KeyOverride && f.Removed(), c.Kind == KeyPending && f.Record != nil:
		*outcome = MovePointless
	case c.Kind != KeyRecord:
		p.lease, p.timed = c.TTL, []keyValue{{key, c.Value}}
	default:
		p.ops = append(p.ops, clientv3.OpPut(key, string(c.Value)))
		if f.Pending != nil {
			p.ops = append(p.ops, clientv3.OpDelete(t.layout.Pending(c.Key)))
		}
	}
	return p
}
