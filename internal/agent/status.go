package agent

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Status is the status of an agent.
type Status struct {
	Phase      Phase
	Beat       time.Time       // start of the last probe or tick; zero before the first
	Registered bool            // whether etcd holds the record, as far as is known
	Record     instance.Record // last one set; zero before the first
	Reason     string          // why the engine is not serving; "" when it is
}

// status guards the Status of an agent.
type status struct {
	mu      sync.Mutex // guards current
	current Status
}

func (s *status) read() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.current
	current.Record = clone(current.Record)
	return current
}

func (s *status) update(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.current)
}

func (s *status) beat() { s.update(func(s *Status) { s.Beat = time.Now() }) }

// registered sets whether etcd holds the record.
func (s *status) registered(ok bool) {
	s.update(func(s *Status) {
		s.Registered = ok
		switch {
		case ok && s.Phase == Registering && s.Record.State != instance.Starting:
			s.Phase = Serving
		case !ok && s.Phase == Serving:
			s.Phase = Registering
		}
	})
}

// setRecord sets the record that was put last.
func (s *status) setRecord(rec instance.Record) {
	s.update(func(s *Status) {
		s.Record = rec
		switch {
		case rec.State == instance.Draining:
			s.Phase = Draining
		case rec.State == instance.Down:
			s.Phase = Down
		case rec.State == instance.Starting:
			s.Phase = Registering // the reason is there already
		case s.Registered:
			s.Phase, s.Reason = Serving, ""
		default:
			s.Phase, s.Reason = Registering, ""
		}
	})
}
