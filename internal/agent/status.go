package agent

import (
	"context"
	"reflect"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Registrar keeps a record in etcd. Set sets the record and does not wait for etcd. Settle waits
// until etcd has that record or it must not be written now; it returns false if ctx ends first.
// Revoke ends the registration within a time limit.
type Registrar interface {
	Set(rec instance.Record)
	Settle(ctx context.Context) bool
	Revoke(ctx context.Context) error
}

// Status describes the state of an agent.
type Status struct {
	Phase      Phase
	Beat       time.Time       // start of the last probe or tick; zero before the first
	Registered bool            // whether etcd holds the record, as far as is known
	Record     instance.Record // last record set; zero before the first
	Reason     string          // why the engine is not serving; "" when it is
}

// Status returns a copy of the status. It is safe for concurrent use.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.Record = clone(s.Record)
	switch {
	case s.Phase != Probing: // Run has ended
	case s.Record.State == instance.Draining:
		s.Phase = Draining
	case s.Record.State == instance.Down:
		s.Phase = Down
	case s.Record.State == instance.Ready && s.Registered:
		s.Phase = Serving
	case a.hasRecord():
		s.Phase = Registering
	}
	return s
}

func (a *Agent) update(f func(*Status)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.status)
}

func (a *Agent) beat() { a.update(func(s *Status) { s.Beat = time.Now() }) }

// Registered reports to the agent whether etcd holds its record. It is safe for concurrent
// use.
func (a *Agent) Registered(ok bool) { a.update(func(s *Status) { s.Registered = ok }) }

// hasRecord reports whether the registrar has a record.
func (a *Agent) hasRecord() bool { return a.status.Record.State != "" }

// put passes a record to the registrar if it has changed.
func (a *Agent) put(rec instance.Record) {
	changed := !reflect.DeepEqual(a.status.Record, rec)
	a.update(func(s *Status) {
		if s.Record = rec; rec.State == instance.Ready {
			s.Reason = ""
		}
	})
	if changed {
		a.registrar.Set(clone(rec))
	}
}

// putState passes the last record with another state to the registrar.
func (a *Agent) putState(state instance.State, cause string) {
	rec := clone(a.status.Record)
	rec.State, rec.Cause = state, cause
	a.put(rec)
}

// settle waits until etcd has the last record, and reports whether it has.
func (a *Agent) settle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.registrar.Settle(ctx)
}
