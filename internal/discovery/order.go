package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// What a former store said, and the present one lacks, only the proxies know.
// An operator tells all of them through one key what shall become of it.

// The orders.
const (
	orderRestore = "restore"
	orderForget  = "forget"
)

// orderTTL is how long an order stands for proxies that are away now.
const orderTTL = 24 * time.Hour

// order is the JSON value of the key.
type order struct {
	V      int      `json:"v"`
	Do     string   `json:"do"`             // restore or forget
	Keys   []string `json:"keys,omitempty"` // role/host:port; none: everything
	By     string   `json:"by,omitempty"`
	Reason string   `json:"reason,omitempty"`
}

// Restore tells every proxy to write back to etcd what it keeps in force of a
// former store: static records and overrides, of the instances given or of all.
// What the present store has meanwhile is left alone. It does not wait for them.
func (s *Store) Restore(ctx context.Context, keys []instance.Key, reason string) error {
	return s.order(ctx, orderRestore, keys, reason)
}

// Forget tells every proxy to let go of what it keeps in force of a former
// store, of the instances given or of all. It does not wait for them.
func (s *Store) Forget(ctx context.Context, keys []instance.Key, reason string) error {
	return s.order(ctx, orderForget, keys, reason)
}

func (s *Store) order(ctx context.Context, do string, keys []instance.Key, reason string) error {
	o := order{V: 1, Do: do, By: s.actor, Reason: reason}
	for _, k := range keys {
		o.Keys = append(o.Keys, k.String())
	}
	value, err := encode(o)
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
	cctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = s.cli.Txn(cctx).Then(append(audit, clientv3.OpPut(s.layout.Kept(), string(value), clientv3.WithLease(lease)))...).Commit()
	if err != nil {
		return fmt.Errorf("%w (it may have been applied all the same; repeating it does no harm)", explain(ctx, s.cli, do, err, true))
	}
	return nil
}

// keptEntry is what a proxy keeps of one instance: nil for nothing.
type keptEntry struct {
	key              instance.Key
	record, override []byte
	hasRecord        bool
	hasOverride      bool
}

// restore writes one of them back, where the store has nothing of its own.
func (s *Store) restore(ctx context.Context, k keptEntry, reason string) error {
	return s.change(ctx, k.key, reason, func(f *found) (plan, error) {
		p := plan{what: orderRestore}
		gone := f.removed()
		if k.hasOverride && f.override == nil {
			p.ops = append(p.ops, clientv3.OpPut(s.layout.Override(k.key), string(k.override)))
			o, err := DecodeOverride(k.override)
			gone = err == nil && o.State == instance.Removed
		}
		if k.hasRecord && f.record == nil && !gone {
			p.ops = append(p.ops, clientv3.OpPut(s.layout.Instance(k.key), string(k.record)))
		}
		return p, nil
	})
}

// ordered obeys an order, once. One that came with a store that is new to us
// was given for another loss.
func (o *owner) ordered(kv *mvccpb.KeyValue, obey bool) {
	if kv == nil || kv.ModRevision <= o.order {
		return
	}
	o.order, o.table.willed = kv.ModRevision, true
	var cmd order
	if !obey {
		return
	}
	if err := json.Unmarshal(kv.Value, &cmd); err != nil {
		o.w.log.WithField("error", err).Warn("an order to the proxies cannot be read")
		return
	}
	wanted := map[instance.Key]*keptEntry{}
	for _, e := range o.keptEntries() {
		if len(cmd.Keys) > 0 && !slices.Contains(cmd.Keys, e.key.String()) {
			continue
		}
		if cmd.Do == orderForget {
			o.w.log.WithField("key", e.rest()).Info("forgotten, as an operator ordered")
			o.table.drop(e)
			o.dirty = true
			continue
		}
		k := wanted[e.key]
		if k == nil {
			k = &keptEntry{key: e.key}
			wanted[e.key] = k
		}
		if e.kind == kindOverride {
			k.override, k.hasOverride = e.value, true
		} else {
			k.record, k.hasRecord = e.value, true
		}
	}
	if cmd.Do != orderRestore {
		return
	}
	for _, k := range wanted {
		o.restores = append(o.restores, *k)
	}
}

// keptEntries lists what is kept of a former store.
func (o *owner) keptEntries() []*entry {
	var out []*entry
	for _, e := range o.table.absent {
		if e.absent.kind == kept {
			out = append(out, e)
		}
	}
	return out
}

// restoreAll writes back, off the owner; what it writes comes back through the
// watch. Another proxy that does the same finds nothing to do.
func (w *Watcher) restoreAll(ctx context.Context, entries []keptEntry) {
	for _, k := range entries {
		err := w.store.restore(ctx, k, "kept since etcd was replaced")
		if ctx.Err() != nil {
			return
		}
		log := w.log.WithField("instance", k.key.String())
		if err != nil {
			log.WithField("error", err).Warn("could not be restored; order it again")
		} else {
			log.Info("restored, as an operator ordered")
		}
	}
}
