package fakevllm

import (
	"context"
	"errors"
	"sync"

	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
)

// lives knows which life of an engine is the present one, and what is the same in all of them.
type lives struct {
	mu     sync.Mutex          // guards everything below
	addr   string              // host:port
	at     connector.Addresses // of the connector
	dpSize int                 // of the next life
	life   *life
	closed bool
}

var errRunning = errors.New("the engine runs already, or was closed for good")

// next is what the next life is to be like.
func (s *lives) next() (addr string, at connector.Addresses, dpSize int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr, s.at, s.dpSize
}

// enter makes a life the present one, but for one that comes while another lasts.
func (s *lives) enter(l *life) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.life != nil && !s.life.isDead() {
		return errRunning
	}
	s.addr, s.at = l.ln.Addr().String(), l.connector.Addresses()
	s.life = l
	return nil
}

func (s *lives) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

// Died is closed when the present life of the engine has ended.
func (s *lives) Died() <-chan struct{} { return s.current().done }

// Kill is kill -9: every connection ends by RST, new ones are refused, and
// offers that were not fetched are lost. It doesn't wait for handlers.
func (s *lives) Kill() { s.current().end() }

// Close kills the engine for good and waits until all its goroutines have ended.
func (s *lives) Close() {
	s.mu.Lock()
	s.closed = true
	l := s.life
	s.mu.Unlock()
	l.end()
	// Without a deadline: handlers see the end of the life at once.
	<-l.idle
	l.serving.Wait()
	l.work.Wait()
}

// Shutdown stops accepting, lets running requests finish until ctx ends, and
// then closes.
func (s *lives) Shutdown(ctx context.Context) error {
	err := s.current().http.Shutdown(ctx)
	s.Close()
	return err
}

// CloseIdle ends the connections that wait for a next request, as uvicorn does
// to those idle for five seconds.
func (s *lives) CloseIdle() { s.current().ln.CloseIdle() }

// SetDPSize is how many ranks the next life has.
func (s *lives) SetDPSize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dpSize = max(n, 1)
}

// Address is host:port.
func (s *lives) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// URL is the base URL, without a trailing slash.
func (s *lives) URL() string { return "http://" + s.Address() }

// EngineID names the present incarnation, as in kv_transfer_params: its rank 0.
func (s *lives) EngineID() string { return s.current().engineID }

// SideChannel is the port of the side channel, 0 in plain mode.
func (s *lives) SideChannel() int { return s.current().connector.Port(0) }

// Bootstrap is the port of the bootstrap server, 0 for all but a Mooncake producer.
func (s *lives) Bootstrap() int {
	if c, ok := s.current().connector.(*connector.Mooncake); ok {
		return c.Bootstrap()
	}
	return 0
}

// AllocPorts are those of an LMCache decode, one for each rank.
func (s *lives) AllocPorts() []int {
	if c, ok := s.current().connector.(*connector.LMCache); ok {
		return c.AllocPorts()
	}
	return nil
}

// Unread is how many prompts lie in the buffer of an LMCache decode.
func (s *lives) Unread() int {
	if c, ok := s.current().connector.(*connector.LMCache); ok {
		return c.Unread()
	}
	return 0
}

// ZMQAddress is what a MoRI-IO engine says of itself, "" for all others.
func (s *lives) ZMQAddress() string {
	if c, ok := s.current().connector.(*connector.MoRIIO); ok {
		return c.ZMQAddress()
	}
	return ""
}

// KVEventSources is where the present life of the engine publishes, as
// GET /kv_event_sources says it; nil for one that does not.
func (s *lives) KVEventSources() *KVEvents {
	if e := s.current().cores[0].Events; e != nil {
		conf := e.Config()
		return &conf
	}
	return nil
}

// Rank is one data-parallel rank in the present life.
type Rank struct {
	EngineID    string `json:"engine_id"`
	SideChannel int    `json:"side_channel,omitempty"`
	Requests    int64  `json:"requests"` // that it was given
}

// Ranks reads them all, in their order.
func (s *lives) Ranks() []Rank {
	var out []Rank
	l := s.current()
	for i, c := range l.cores {
		r := Rank{EngineID: c.ID, Requests: c.Requests()}
		if mode := l.server.opt.Mode; mode.AnswersParams() || mode == P2P { // the others have one for all ranks
			r.SideChannel = l.connector.Port(i)
		}
		out = append(out, r)
	}
	return out
}
