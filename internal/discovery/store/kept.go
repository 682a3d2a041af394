package store

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Kept restores or discards the entries that proxies keep from a former store.
type Kept struct{ *writer }

// Order makes every proxy write back to etcd (do is schema.OrderRestore) or drop (schema.OrderForget)
// what it keeps active of a former store: static records and overrides, of the instances given or of
// all. What the present store has meanwhile is left alone. It does not wait for the proxies.
func (s *Kept) Order(ctx context.Context, do string, keys []instance.Key, reason string) error {
	o := schema.Order{V: 1, Do: do, By: s.by(ctx), Reason: reason}
	for _, k := range keys {
		o.Keys = append(o.Keys, k.String())
	}
	value, err := schema.Encode(o)
	if err != nil {
		return err
	}
	if err := s.ensureSchema(ctx); err != nil {
		return err
	}
	lease, err := etcd.Grant(ctx, s.cli, orderTTL)
	if err != nil {
		return err
	}
	var one instance.Key
	if len(keys) == 1 {
		one = keys[0]
	}
	audit, err := s.audit(ctx, one, plan{what: do, changes: []Change{}}, reason)
	if err != nil {
		s.revokeUnused(ctx, lease)
		return err
	}
	_, err = s.commit(ctx, do, nil, append(audit, clientv3.OpPut(s.layout.Kept(), string(value), clientv3.WithLease(lease))))
	return err
}

// orderTTL is how long an order is kept for proxies that are away now.
const orderTTL = 24 * time.Hour
