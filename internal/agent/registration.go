package agent

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Registrar keeps the record that was set last in etcd. Set does not wait for etcd. Settle
// waits until etcd has the last Set, or it is not to be written now, and returns false if ctx
// ends first. Revoke ends the registration within a time limit.
type Registrar interface {
	Set(rec instance.Record)
	Settle(ctx context.Context) bool
	Revoke(ctx context.Context) error
}

// registration is the record that the agent has put. Only the goroutine of Run uses it.
type registration struct {
	key       instance.Key
	registrar Registrar
	status    *status // receives each record

	rec instance.Record // last one
	set bool            // rec was passed to the registrar
}

// put passes a record to the registrar if it has changed.
func (r *registration) put(rec instance.Record) {
	changed := !r.set || !reflect.DeepEqual(r.rec, rec)
	r.rec, r.set = rec, true
	r.status.setRecord(rec)
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

// settle waits until etcd has the last record, and reports whether it has.
func (r *registration) settle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return r.registrar.Settle(ctx)
}

// revoke ends the registration.
func (r *registration) revoke(ctx context.Context) error {
	if err := r.registrar.Revoke(ctx); err != nil {
		return fmt.Errorf("revoke %s (its key is deleted when the lease expires): %w", r.key, err)
	}
	return nil
}
