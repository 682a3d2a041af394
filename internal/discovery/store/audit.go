package store

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// auditTTL is the least time for which an audit entry is kept.
	auditTTL = 30 * 24 * time.Hour
	// maxAudit bounds the number of entries: each write beyond it also deletes some of the
	// oldest. A script that drains and undrains all day must not fill etcd.
	maxAudit = 10000
	// auditTrim is the number of entries that one write deletes.
	auditTrim = 16
	// maxWhy bounds the text of a reason, in bytes.
	maxWhy = 1024
)

// AuditEntry records who made which change, and why. Its revision is that of its key.
type AuditEntry struct {
	V       int           `json:"v"`
	At      time.Time     `json:"at"` // by the writer's clock; for display
	Who     string        `json:"who"`
	What    string        `json:"what"` // add, wait, promote, remove, drain, undrain, cordon, uncordon, weight, sync-flags, …
	Role    instance.Role `json:"role,omitempty"`
	Address string        `json:"address,omitempty"`
	Why     string        `json:"why,omitempty"`
	For     string        `json:"for,omitempty"`    // how long it holds; "": until it is lifted
	Weight  *int          `json:"weight,omitempty"` // new weight; nil: lifted, or another change
	// Changes are those of static instances, overrides and documents, at most 16 KiB together. Nil: not
	// recorded, because they are larger or the writer is of an older release.
	Changes []Change `json:"changes,omitzero"`

	Revision int64 `json:"-"`
}

// audit returns the operations that write an audit entry.
func (w *writer) audit(ctx context.Context, k instance.Key, p plan, why string) ([]clientv3.Op, error) {
	e := AuditEntry{
		V: 1, At: time.Now().UTC(), Who: w.by(ctx), What: p.what, Role: k.Role, Address: k.Address, Why: cut(why, maxWhy), Weight: p.weight,
		Changes: p.changes,
	}
	if p.lease > 0 {
		e.For = p.lease.String()
	}
	value, err := schema.Encode(e)
	if errors.Is(err, schema.ErrTooLarge) || slices.ContainsFunc(e.Changes, Change.binary) {
		e.Changes = nil // it cannot be reverted
		value, err = schema.Encode(e)
	}
	if err != nil {
		return nil, err
	}
	lease, err := w.auditLease(ctx)
	if err != nil {
		return nil, err
	}
	ops, err := w.trimAudit(ctx)
	if err != nil {
		return nil, err
	}
	return append(ops, clientv3.OpPut(w.layout.Audit(ulid.Make().String()), string(value), clientv3.WithLease(lease))), nil
}

// auditLease returns the lease of all entries of a day. Its id is a hash of the day, so that every
// program finds it without a query; about 31 of these leases exist at a time. The day is by the
// writer's clock; with a wrong clock, an entry shares the lease of another day.
func (w *writer) auditLease(ctx context.Context) (clientv3.LeaseID, error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(w.layout.Audit("") + time.Now().UTC().Format(time.DateOnly)))
	id := int64(h.Sum64()>>1) | 1
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	_, err := clientv3.RetryLeaseClient(w.cli).LeaseGrant(cctx, &pb.LeaseGrantRequest{ID: id, TTL: etcd.Seconds(auditTTL + 24*time.Hour)})
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return 0, etcd.Explain(ctx, w.cli, "grant a lease", err, true)
	}
	return clientv3.LeaseID(id), nil
}

// trimAudit returns the operations that keep the number of entries bounded.
func (w *writer) trimAudit(ctx context.Context) ([]clientv3.Op, error) {
	prefix := w.layout.Audit("")
	resp, err := w.txn(ctx, "count the audit entries", nil, []clientv3.Op{
		clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(auditTrim)),
	})
	if err != nil || resp.Responses[0].GetResponseRange().Count < w.maxAudit {
		return nil, err
	}
	var ops []clientv3.Op
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		ops = append(ops, clientv3.OpDelete(string(kv.Key)))
	}
	return ops, nil
}

// cut shortens a text to at most n bytes, at the end of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
