package store

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// WatchWriter makes the writes of a watch.Watcher; it implements watch.Writer.
type WatchWriter struct{ *writer }

// Promote turns a pending add into a static record: one transaction that
// applies only if the pending add is still the one given, no record exists and
// the instance is not removed. Of many callers exactly one gets true.
func (w *WatchWriter) Promote(ctx context.Context, pending *instance.Instance, rec instance.Record) (bool, error) {
	k := pending.Key
	value, err := staticValue(k, rec, "admin")
	if err != nil {
		return false, err
	}
	won := false
	err = w.change(ctx, k, "it answered and serves the model", func(f *etcd.Found) (plan, error) {
		won = f.Pending != nil && f.Pending.ModRevision == pending.ModRevision && f.Record == nil && !f.Removed()
		if !won {
			return plan{}, nil
		}
		return plan{what: "promote", ops: []clientv3.Op{
			clientv3.OpPut(w.layout.Instance(k), string(value)),
			clientv3.OpDelete(w.layout.Pending(k)),
		}}, nil
	})
	return won && err == nil, err
}

// DropPending deletes a pending add whose instance has been registered in another way. It applies
// only if the pending add has not changed and the record exists.
func (w *WatchWriter) DropPending(ctx context.Context, pending *instance.Instance) (bool, error) {
	k := pending.Key
	dropped := false
	err := w.change(ctx, k, "it has been registered meanwhile", func(f *etcd.Found) (plan, error) {
		dropped = f.Pending != nil && f.Pending.ModRevision == pending.ModRevision && f.Record != nil
		if !dropped {
			return plan{}, nil
		}
		return plan{what: "drop-wait", ops: []clientv3.Op{clientv3.OpDelete(w.layout.Pending(k))}}, nil
	})
	return dropped && err == nil, err
}

// WriteBack writes the values that were kept from a former store, except where the present store
// has one.
func (w *WatchWriter) WriteBack(ctx context.Context, k watch.Kept, reason string) error {
	if k.Document != nil {
		_, err := (&Documents{w.writer}).change(ctx, k.Key, DocumentOptions{Reason: reason}, func(old *mvccpb.KeyValue) (string, []byte, error) {
			if old != nil {
				return "", nil, nil
			}
			return schema.OrderRestore, k.Document, nil
		})
		return err
	}
	return w.change(ctx, k.Key, reason, func(f *etcd.Found) (plan, error) {
		p := plan{what: schema.OrderRestore}
		removed := f.Removed()
		if k.Override != nil && f.Override == nil {
			p.ops = append(p.ops, clientv3.OpPut(w.layout.Override(k.Key), string(k.Override)))
			o, err := schema.DecodeOverride(k.Override)
			removed = err == nil && o.State == instance.Removed
		}
		if k.Record != nil && f.Record == nil && !removed {
			p.ops = append(p.ops, clientv3.OpPut(w.layout.Instance(k.Key), string(k.Record)))
		}
		return p, nil
	})
}
