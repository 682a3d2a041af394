package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Restore tells every proxy to write back to etcd what it keeps in force of a
// former store: static records and overrides, of the instances given or of all.
// What the present store has meanwhile is left alone. It does not wait for them.
func (s *Store) Restore(ctx context.Context, keys []instance.Key, reason string) error {
	return s.order(ctx, schema.OrderRestore, keys, reason)
}

// Forget tells every proxy to let go of what it keeps in force of a former
// store, of the instances given or of all. It does not wait for them.
func (s *Store) Forget(ctx context.Context, keys []instance.Key, reason string) error {
	return s.order(ctx, schema.OrderForget, keys, reason)
}

func (s *Store) order(ctx context.Context, do string, keys []instance.Key, reason string) error {
	o := schema.Order{V: 1, Do: do, By: s.actor, Reason: reason}
	for _, k := range keys {
		o.Keys = append(o.Keys, k.String())
	}
	value, err := schema.Encode(o)
	if err != nil {
		return err
	}
	if err := s.EnsureSchema(ctx); err != nil {
		return err
	}
	lease, err := s.grant(ctx, orderTTL)
	if err != nil {
		return err
	}
	var one instance.Key
	if len(keys) == 1 {
		one = keys[0]
	}
	audit, err := s.audit(ctx, one, plan{what: do}, reason)
	if err != nil {
		s.giveBack(ctx, []clientv3.LeaseID{lease})
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	_, err = s.cli.Txn(cctx).Then(append(audit, clientv3.OpPut(s.layout.Kept(), string(value), clientv3.WithLease(lease)))...).Commit()
	if err != nil {
		return fmt.Errorf("%w (it may have been applied all the same; repeating it does no harm)", etcd.Explain(ctx, s.cli, do, err, true))
	}
	return nil
}

// orderTTL is how long an order stands for proxies that are away now.
const orderTTL = 24 * time.Hour

// WriteBack writes what was kept of a former store, where the present one has nothing of its own.
func (s *Store) WriteBack(ctx context.Context, k watch.Kept, reason string) error {
	return s.change(ctx, k.Key, reason, func(f *etcd.Found) (plan, error) {
		p := plan{what: schema.OrderRestore}
		gone := f.Removed()
		if k.HasOverride && f.Override == nil {
			p.ops = append(p.ops, clientv3.OpPut(s.layout.Override(k.Key), string(k.Override)))
			o, err := schema.DecodeOverride(k.Override)
			gone = err == nil && o.State == instance.Removed
		}
		if k.HasRecord && f.Record == nil && !gone {
			p.ops = append(p.ops, clientv3.OpPut(s.layout.Instance(k.Key), string(k.Record)))
		}
		return p, nil
	})
}
