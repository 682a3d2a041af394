package fakevllm

import (
	"context"
	"errors"
	"sync"

	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
)

// lives has the current life of an engine and the state that all lives share.
type lives struct {
	mu     sync.Mutex           // guards everything below
	addr   string               // host:port
	at     *connector.Addresses // of the connector
	dpSize int                  // of the next life
	life   *life
	closed bool
}

var errRunning = errors.New("the engine runs already, or was closed for good")

// next configures the next life.
func (s *lives) next() (addr string, at *connector.Addresses, dpSize int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr, s.at, s.dpSize
}

// enter makes a life the current one, unless another one is still running.
func (s *lives) enter(l *life) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.life != nil && !s.life.isDead() {
		return errRunning
	}
	s.addr = l.ln.Addr().String()
	s.life = l
	return nil
}

func (s *lives) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

// Died returns a channel that is closed when the current life of the engine ends.
func (s *lives) Died() <-chan struct{} { return s.current().done }

// Kill simulates kill -9: every connection is reset, new ones are refused, and
// pending transfers are lost. It does not wait for handlers.
func (s *lives) Kill() { s.current().end() }

// Close kills the engine for good and waits until all its goroutines have ended.
func (s *lives) Close() {
	s.mu.Lock()
	s.closed = true
	l := s.life
	s.mu.Unlock()
	l.end()
	// Without a deadline: handlers see the end of the life at once.
	l.handlers.Wait()
	l.serving.Wait()
	l.work.Wait()
}

// KillWorker simulates kill -9 of the engine's worker, and SIGTERM without a shutdown timeout: running
// requests end with an error, streams by an error event and [DONE] inside their 200. Then
// the engine exits. It blocks until that.
func (s *lives) KillWorker() { s.current().fail() }

// Shutdown stops accepting, lets running requests finish until ctx ends, ends
// the others as KillWorker does, and then closes.
func (s *lives) Shutdown(ctx context.Context) error {
	l := s.current()
	err := l.http.Shutdown(ctx)
	if err != nil {
		l.fail()
	}
	s.Close()
	return err
}

// CloseIdle ends the connections that wait for a next request, as uvicorn does
// to those idle for five seconds.
func (s *lives) CloseIdle() {
	h := s.current().http
	h.SetKeepAlivesEnabled(false)
	h.SetKeepAlivesEnabled(true)
}

// SetDPSize sets the number of ranks of the next life.
func (s *lives) SetDPSize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dpSize = max(n, 1)
}

// Address returns host:port of the engine.
func (s *lives) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// URL returns the base URL, without a trailing slash.
func (s *lives) URL() string { return "http://" + s.Address() }

// EngineID returns the engine id of rank 0 in the current life, as in kv_transfer_params.
func (s *lives) EngineID() string { return s.current().engineID }

// SideChannel returns the port of the side channel, 0 in plain mode.
func (s *lives) SideChannel() int { return s.current().connector.Port(0) }

// Bootstrap returns the port of the bootstrap server, 0 for all but a Mooncake producer.
func (s *lives) Bootstrap() int {
	if c, ok := s.current().connector.(interface{ Bootstrap() int }); ok {
		return c.Bootstrap()
	}
	return 0
}

// AllocPorts returns the alloc ports of an LMCache decode, one for each rank.
func (s *lives) AllocPorts() []int {
	if c, ok := s.current().connector.(interface{ AllocPorts() []int }); ok {
		return c.AllocPorts()
	}
	return nil
}

// Unread returns the number of prompts in the buffer of an LMCache decode.
func (s *lives) Unread() int {
	if c, ok := s.current().connector.(interface{ Unread() int }); ok {
		return c.Unread()
	}
	return 0
}

// ZMQAddress returns the address that a MoRI-IO engine reports, "" for all others.
func (s *lives) ZMQAddress() string {
	if c, ok := s.current().connector.(interface{ ZMQAddress() string }); ok {
		return c.ZMQAddress()
	}
	return ""
}

// KVEventSources returns the endpoints at which the current life publishes KV events, as in
// GET /kv_event_sources; nil if it does not publish.
func (s *lives) KVEventSources() *KVEvents {
	if e := s.current().cores[0].Events; e != nil {
		conf := e.Config()
		return &conf
	}
	return nil
}

// Rank is one data-parallel rank in the current life.
type Rank struct {
	EngineID string
	Requests int64 // that it was given
}

// Ranks returns all ranks in order.
func (s *lives) Ranks() []Rank {
	var out []Rank
	for _, c := range s.current().cores {
		out = append(out, Rank{EngineID: c.ID, Requests: c.Requests()})
	}
	return out
}
