package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Registrar keeps the record in etcd as it was last set. Set does not wait for
// etcd; Settle does, until the last Set has arrived, or is not to be written now, and
// gives false if ctx ends before. Revoke ends the registration and is bounded in time.
type Registrar interface {
	Set(rec instance.Record)
	Settle(ctx context.Context) bool
	Revoke(ctx context.Context) error
}

// registration is what the agent has said of its engine. It belongs to Run's goroutine.
type registration struct {
	key       instance.Key
	registrar Registrar
	standing  *standing // is told of each record

	rec instance.Record // last one
	set bool            // rec has been given to the registrar
}

// put hands a record to the registrar if it says anything new.
func (r *registration) put(rec instance.Record) {
	changed := !r.set || !equal(r.rec, rec)
	r.rec, r.set = rec, true
	r.standing.says(rec)
	if changed {
		r.registrar.Set(clone(rec))
	}
}

// putState puts the last record with another state.
func (r *registration) putState(state instance.State, cause string) {
	rec := clone(r.rec)
	rec.State, rec.Cause = state, cause
	r.put(rec)
}

// settle waits for the last word to arrive, and reports whether it has.
func (r *registration) settle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return r.registrar.Settle(ctx)
}

// revoke ends the registration.
func (r *registration) revoke(ctx context.Context) error {
	if err := r.registrar.Revoke(ctx); err != nil {
		return fmt.Errorf("revoke %s (its key goes when the lease ends): %w", r.key, err)
	}
	return nil
}
