package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Kept restores or discards the entries that proxies keep from a former store.
type Kept struct{ *writer }

// Order makes every proxy write back to etcd (schema.OrderRestore) or drop (schema.OrderForget) the
// entries that it keeps from a former store, of the given keys or all. Entries are static records,
// overrides and documents. Keys that the present store has are not changed. It does not wait for
// the proxies.
func (s *Kept) Order(ctx context.Context, do string, keys []instance.Key, reason string) error {
	o := schema.Order{V: 1, Do: do, By: s.by(ctx), Reason: reason}
	for _, k := range keys {
		o.Keys = append(o.Keys, k.String())
	}
	kvs, err := s.get(ctx, "read the last order", s.layout.Kept())
	if err != nil {
		return err
	}
	var was schema.Order
	last := etcd.Single(kvs)
	if last != nil && json.Unmarshal(last.Value, &was) == nil {
		o.Earlier, was.Earlier, was.Revision = was.Earlier, nil, last.ModRevision
		if was.Do == schema.OrderForget { // what was restored is in etcd, or was deleted since
			o.Earlier = append(o.Earlier, was)
		}
	}
	value, err := schema.Encode(o)
	for ; errors.Is(err, schema.ErrTooLarge) && len(o.Earlier) > 0; value, err = schema.Encode(o) {
		o.Earlier = o.Earlier[1:]
	}
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
	resp, err := s.commit(ctx, do, []clientv3.Cmp{etcd.Unchanged(s.layout.Kept(), last)},
		append(audit, clientv3.OpPut(s.layout.Kept(), string(value), clientv3.WithLease(lease))))
	if err == nil && !resp.Succeeded {
		s.revokeUnused(ctx, lease)
		return fmt.Errorf("%s: %w; try again", do, ErrConflict)
	}
	return err
}

// kept returns an error if a proxy keeps one of these keys from a former etcd, since a write would
// replace the whole kept value. Proxies of earlier releases do not publish their kept keys.
func (w *writer) kept(ctx context.Context, kind schema.Kind, keys ...instance.Key) error {
	proxies, err := (&Reader{w.client}).Proxies(ctx)
	if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	for i := range proxies {
		for _, key := range proxies[i].Kept {
			n := w.layout.Parse(w.layout.Root() + key)
			if k, _ := watch.KeyOf(n, &mvccpb.KeyValue{}); n.Kind == kind && slices.Contains(keys, k) {
				what := k.String()
				if kind == schema.KindDocument {
					what = "--all"
				}
				return fmt.Errorf("%w: proxies keep %s of a former etcd; first decide by pdctl restore %s or pdctl forget %[3]s, which takes effect within seconds", ErrIntent, n.Text(), what)
			}
		}
	}
	return nil
}

// orderTTL is how long an order is stored for proxies that do not run now.
const orderTTL = 24 * time.Hour
