package watch

import (
	"context"
	"slices"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// readModels is a list of models that was read from the engine of an instance.
type readModels struct {
	key instance.Key
	verify.Models
}

// ObserveModels takes the list of models that was read from the engine of in, an instance of a
// snapshot. Snapshots have it until the engine restarts or, if an agent maintains the record,
// until the record is rewritten. It returns before it is published.
func (w *Watcher) ObserveModels(ctx context.Context, in *instance.Instance, facts instance.Facts) {
	w.send(ctx, message{models: &readModels{in.Key, verify.Models{
		Incarnation: in.Incarnation(), ModRevision: in.ModRevision, Names: facts.Models, Truncated: facts.ModelsTruncated,
	}}})
}

// observeModels stores a list that was read. Nothing is published if the snapshot has it already.
func (o *owner) observeModels(m *readModels) {
	e := o.table.find(schema.KindInstance, m.key)
	if e == nil {
		return // it was removed
	}
	if in := e.in; in != nil && !e.old && in.Incarnation() == m.Incarnation &&
		in.Record.ModelsTruncated == m.Truncated && slices.Equal(in.Record.Models, m.Names) {
		return
	}
	o.facts.Models[m.key] = &m.Models
	o.table.touch(m.key)
	o.table.dirty = true
}
