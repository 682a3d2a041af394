package agent

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Status is a copy of where the agent stands.
type Status struct {
	Phase      Phase
	Beat       time.Time       // when Run last took a turn; zero before the first
	Registered bool            // etcd holds the record, as far as is known
	Record     instance.Record // last one set; zero before the first
	Reason     string          // why the engine is not serving; "" when it is
}

// standing is where the agent stands, for any goroutine to read and for the registrar to
// correct.
type standing struct {
	mu     sync.Mutex // guards status
	status Status
}

func (s *standing) read() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Record = clone(status.Record)
	return status
}

func (s *standing) update(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}

func (s *standing) beat() { s.update(func(s *Status) { s.Beat = time.Now() }) }

// registered takes in whether etcd holds the record.
func (s *standing) registered(ok bool) {
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

// says takes in the record that was set last.
func (s *standing) says(rec instance.Record) {
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
