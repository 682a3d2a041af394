package discovery

import (
	"context"
	"encoding/json"
	"time"

	"github.com/oklog/ulid/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// auditTTL is how long an audit entry lives.
const auditTTL = 30 * 24 * time.Hour

// AuditEntry says who changed what and why. Its revision is that of its key.
type AuditEntry struct {
	V       int           `json:"v"`
	At      time.Time     `json:"at"` // the writer's clock, for people
	Who     string        `json:"who"`
	What    string        `json:"what"` // add, wait, promote, drop-wait, remove, sync-flags, …
	Role    instance.Role `json:"role,omitempty"`
	Address string        `json:"address,omitempty"`
	Why     string        `json:"why,omitempty"`

	Revision int64 `json:"-"`
}

// audit makes the operation that writes an audit entry, under a lease of its own.
func (s *Store) audit(ctx context.Context, k instance.Key, what, why string) (clientv3.Op, clientv3.LeaseID, error) {
	value, err := encode(AuditEntry{
		V: 1, At: time.Now().UTC(), Who: s.actor, What: what, Role: k.Role, Address: k.Address, Why: why,
	})
	if err != nil {
		return clientv3.Op{}, 0, err
	}
	lease, err := s.grant(ctx, auditTTL)
	if err != nil {
		return clientv3.Op{}, 0, err
	}
	return clientv3.OpPut(s.layout.Audit(ulid.Make().String()), string(value), clientv3.WithLease(lease)), lease, nil
}

// AuditLog reads the newest audit entries, newest first; limit 0 reads all.
// Entries that cannot be read are shown with their text in Why.
func (s *Store) AuditLog(ctx context.Context, limit int64) ([]AuditEntry, error) {
	cctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := s.cli.Get(cctx, s.layout.root+segAudit, clientv3.WithPrefix(), clientv3.WithLimit(limit),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	if err != nil {
		return nil, explain(ctx, s.cli, "read the audit log", err, true)
	}
	entries := make([]AuditEntry, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		var e AuditEntry
		if err := json.Unmarshal(kv.Value, &e); err != nil {
			e = AuditEntry{What: "unreadable", Why: instance.Printable(string(kv.Value), 200)}
		}
		e.Revision = kv.ModRevision
		entries = append(entries, e)
	}
	return entries, nil
}
