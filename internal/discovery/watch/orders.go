package watch

import (
	"context"
	"encoding/json"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Entries of a former store that the present one lacks are known only to the proxies.
// An operator decides for all proxies, with one key, whether to restore or forget them.

// applyOrder executes an order once, after those to forget that were missed before it. trusted is
// false for an order that came with a store that is new to this process: it was written for another
// loss.
func (l *lost) applyOrder(kv *mvccpb.KeyValue, trusted bool) {
	if kv == nil || kv.ModRevision <= l.order {
		return
	}
	done := l.order
	l.order, l.table.unsaved = kv.ModRevision, true
	if !trusted {
		return
	}
	last := schema.Order{}
	if err := json.Unmarshal(kv.Value, &last); err != nil {
		l.w.log.WithField("error", err).Warn("cannot read an order for the proxies")
		return
	}
	last.Revision = kv.ModRevision
	for _, order := range append(last.Earlier, last) {
		if order.Revision > done {
			l.execute(&order)
		}
	}
}

// execute executes one order.
func (l *lost) execute(cmd *schema.Order) {
	wanted := map[instance.Key]*Kept{}
	for _, e := range l.table.absent {
		if e.absent.kind != kept || len(cmd.Keys) > 0 && !slices.Contains(cmd.Keys, e.Key.String()) {
			continue
		}
		if cmd.Do == schema.OrderForget {
			l.w.log.WithField("key", e.Text()).Info("forgotten, as an operator ordered")
			l.table.drop(e)
			continue
		}
		k := wanted[e.Key]
		if k == nil {
			k = &Kept{Key: e.Key}
			wanted[e.Key] = k
		}
		switch e.Kind {
		case schema.KindOverride:
			k.Override = e.value
		case schema.KindDocument:
			k.Document = e.value
		default:
			k.Record = append([]byte{}, e.value...) // not nil, even for a bare registration
		}
	}
	if cmd.Do != schema.OrderRestore || l.w.o.Writer == nil {
		return
	}
	for _, k := range wanted {
		l.writeBacks = append(l.writeBacks, *k)
	}
}

// writeBackAll writes entries back; the watch delivers the writes. It must not run on the owner's
// goroutine. If several proxies write an entry back, only the first write has an effect.
func (w *Watcher) writeBackAll(ctx context.Context, entries []Kept) {
	for _, k := range entries {
		err := w.o.Writer.WriteBack(ctx, k, "kept since etcd was replaced")
		if ctx.Err() != nil {
			return
		}
		log := w.log.WithField("instance", k.Key.String())
		if err != nil {
			log.WithField("error", err).Warn("restore failed; repeat the order")
		} else {
			log.Info("restored, as an operator ordered")
		}
	}
}
