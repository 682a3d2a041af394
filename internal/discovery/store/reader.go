package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Reader reads the keys of the layout from etcd, linearizably. It changes nothing.
type Reader struct{ client }

// Snapshot lists the membership once. It probes no instance, so bare records are shown as
// unverified.
func (r *Reader) Snapshot(ctx context.Context) (*instance.Snapshot, error) {
	snap, _, err := r.List(ctx)
	return snap, err
}

// List returns a Snapshot, and the removals of instances that it does not have, ordered by key.
func (r *Reader) List(ctx context.Context) (*instance.Snapshot, []Removal, error) {
	got, err := etcd.List(ctx, etcd.CallTimeout, r.cli, r.layout, true)
	if err != nil {
		return nil, nil, err
	}
	snap := watch.Build(r.layout, got.KVs, got.Revision, verify.Facts{})
	var removals []Removal
	for _, kv := range got.KVs {
		n := r.layout.Parse(string(kv.Key))
		if n.Kind != schema.KindOverride {
			continue
		}
		k := n.Key
		if _, shown := snap.Lookup(k); shown {
			continue
		}
		if o, err := schema.DecodeOverride(kv.Value); err == nil && o.State == instance.Removed {
			removals = append(removals, Removal{Key: k, By: o.By, Reason: o.Reason, Revision: kv.ModRevision})
		}
	}
	return snap, removals, nil
}

// Ends returns the times at which keys with these prefixes expire, by the clock of this machine.
// The prefixes are those of overrides, pending adds or documents.
func (r *Reader) Ends(ctx context.Context, prefixes ...string) (map[instance.Key]time.Time, error) {
	ends := map[instance.Key]time.Time{}
	for _, prefix := range prefixes {
		kvs, err := r.get(ctx, "read time limits", prefix, clientv3.WithPrefix()) // keys-only reads have no lease in etcd 3.7
		if err != nil {
			return nil, err
		}
		for _, kv := range kvs {
			if kv.Lease == 0 {
				continue
			}
			left, _, err := r.timeToLive(ctx, "read a time limit", kv.Lease)
			if err != nil {
				return nil, err
			}
			ends[r.layout.Parse(string(kv.Key)).Key] = time.Now().Add(left).UTC().Truncate(time.Second)
		}
	}
	return ends, nil
}

// Removal is an operator's removal of an instance. By and Reason are as in etcd, not escaped.
type Removal struct {
	Key        instance.Key
	By, Reason string
	Revision   int64 // mod_revision of the override
}

// Newest returns the highest mod_revision among the keys that proxies follow: of those of instances, and
// of documents. A proxy that is up to date has applied both; one of an older release may not know
// documents.
func (r *Reader) Newest(ctx context.Context) (instances, documents int64, err error) {
	var ops []clientv3.Op
	for _, prefix := range r.layout.ListedPrefixes() {
		ops = append(ops, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(1)))
	}
	resp, err := r.txn(ctx, "ask for the newest change", nil, ops)
	if err != nil {
		return 0, 0, err
	}
	for _, one := range resp.Responses {
		for _, kv := range one.GetResponseRange().GetKvs() {
			of := &instances
			if r.layout.Parse(string(kv.Key)).Kind == schema.KindDocument {
				of = &documents
			}
			*of = max(*of, kv.ModRevision)
		}
	}
	return instances, documents, nil
}

// Proxies lists the running proxies, ordered by id. A proxy whose value cannot be decoded has only
// its id.
func (r *Reader) Proxies(ctx context.Context) ([]lease.ProxyPresence, error) {
	return readAll(ctx, r, "list the proxies", r.layout.Proxy(""), lease.ReadProxies)
}

// Loads lists the load digests of the proxies, ordered by id.
func (r *Reader) Loads(ctx context.Context) ([]*loaddigest.ProxyLoad, error) {
	return readAll(ctx, r, "list the load digests", r.layout.Load(""), loaddigest.Decode)
}

// RefusedAgents returns the agents that have published a reason why they are not registered.
func (r *Reader) RefusedAgents(ctx context.Context) ([]lease.RefusedAgent, error) {
	return readAll(ctx, r, "list the agents that are refused", r.layout.Agent(""), lease.ReadRefused)
}

// readAll decodes all keys with a prefix. doing names the operation in errors.
func readAll[T any](ctx context.Context, r *Reader, doing, prefix string, decode func(schema.Layout, []*mvccpb.KeyValue) []T) ([]T, error) {
	kvs, err := r.get(ctx, doing, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	return decode(r.layout, kvs), nil
}

// RawKey is one key as etcd has it.
type RawKey struct {
	Key            string
	Value          []byte
	CreateRevision int64
	ModRevision    int64
	Version        int64
	Lease          int64
	TTL            time.Duration // left on the lease; 0 without a lease, -1s if the lease has ended
	GrantedTTL     time.Duration
}

// Get reads everything etcd holds about one membership: its record, its pending add and its
// override, those that exist, in this order. The keys that spell its address in another way, such as
// localhost:8100, follow.
func (r *Reader) Get(ctx context.Context, k instance.Key) ([]RawKey, error) {
	aliases, err := r.spellings(ctx, k)
	if err != nil {
		return nil, err
	}
	keys := []instance.Key{k}
	for _, kv := range aliases {
		if alias := r.layout.Parse(string(kv.Key)).Key; !slices.Contains(keys, alias) {
			keys = append(keys, alias)
		}
	}
	var kvs []*mvccpb.KeyValue
	for _, k := range keys { // one at a time: a transaction holds 128 operations
		all, err := etcd.FindAll(ctx, r.cli, r.layout, []instance.Key{k}, true)
		if err != nil {
			return nil, err
		}
		kvs = append(kvs, all[0].Record, all[0].Pending, all[0].Override)
	}
	var raw []RawKey
	for _, kv := range kvs {
		if kv == nil {
			continue
		}
		one := RawKey{
			Key: string(kv.Key), Value: kv.Value, Lease: kv.Lease,
			CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version,
		}
		if kv.Lease != 0 {
			if one.TTL, one.GrantedTTL, err = r.timeToLive(ctx, "ask for the lease of "+strings.TrimPrefix(one.Key, r.layout.Root()), kv.Lease); err != nil {
				return nil, err
			}
		}
		raw = append(raw, one)
	}
	return raw, nil
}

// AuditLog reads the newest audit entries, newest first by revision, since clocks differ. limit 0
// reads all. An entry that cannot be decoded has its text in Why.
func (r *Reader) AuditLog(ctx context.Context, limit int64) ([]AuditEntry, error) {
	kvs, err := r.get(ctx, "read the audit log", r.layout.Audit(""), clientv3.WithPrefix(), clientv3.WithLimit(limit),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
	if err != nil {
		return nil, err
	}
	entries := make([]AuditEntry, 0, len(kvs))
	for _, kv := range kvs {
		var e AuditEntry
		if err := json.Unmarshal(kv.Value, &e); err != nil {
			e = AuditEntry{What: "unreadable", Why: instance.Printable(string(kv.Value), 200)}
		}
		e.Revision = kv.ModRevision
		entries = append(entries, e)
	}
	return entries, nil
}
