package watch

import (
	"context"
	"slices"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ObserveModels stores the list of models that was read from the engine of in, an instance of a
// snapshot. Snapshots have it until the engine restarts or, if an agent maintains the record, until
// the record is rewritten. It does not wait for the next snapshot.
func (w *Watcher) ObserveModels(ctx context.Context, in *instance.Instance, facts instance.Facts) {
	m := &verify.Models{Incarnation: in.Incarnation(), ModRevision: in.ModRevision, Lease: in.Lease, Names: facts.Models, Truncated: facts.ModelsTruncated}
	w.send(ctx, func(o *owner) { o.observeModels(in.Key, m) })
}

// observeModels stores a list that was read. Nothing is published if the snapshot has it already.
func (o *owner) observeModels(k instance.Key, m *verify.Models) {
	e := o.table.find(schema.KindInstance, k)
	if e == nil {
		return // it was removed
	}
	if in := e.in; in != nil && !e.old && in.Incarnation() == m.Incarnation &&
		in.Record.ModelsTruncated == m.Truncated && slices.Equal(in.Record.Models, m.Names) {
		return
	}
	o.facts.Models[k] = m
	o.table.touch(k)
}
