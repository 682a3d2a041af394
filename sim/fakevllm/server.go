package fakevllm

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

// Server is one engine. Its methods may be called from any goroutine.
//
// The embedded types own their state: the incarnations of the engine, the remarks on what was
// counted, and the controls of the connectors.
type Server struct {
	lives
	*remarks
	controls

	opt     Options
	count   counters.Counters
	pausing atomic.Bool               // see Pause
	state   atomic.Pointer[CoreState] // see SetCore
	faults  faultScript
	record  requests
}

type (
	remarks  = counters.Remarks
	controls = connector.Controls
)

// Start brings an engine up; it serves when Start returns and until Close. The
// context bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{opt: o, lives: lives{
		addr: o.Addr, dpSize: o.DPSize,
		at: &connector.Addresses{Bootstrap: o.BootstrapAddr, Side: o.SideChannelAddr, Alloc: o.AllocAddrs},
	}}
	s.remarks = &s.count.Remarks
	s.record.Limit = o.RecordLimit
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// TB is what StartTest needs of a testing.TB.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// StartTest is Start for tests: it fails the test on error and closes the
// engine at its end. By default, idle connections stay open: net/http does not retry a POST on a
// connection that the engine closes at the same moment, and the proxy retries it on another engine.
func StartTest(t TB, o Options) *Server {
	t.Helper()
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Hour)
	var s *Server
	if err := tcpserver.WhenFree(t.Context(), func() (err error) { s, err = Start(t.Context(), o); return err }); err != nil {
		t.Fatalf("start a fake vLLM: %v", err)
		return nil
	}
	t.Cleanup(s.Close)
	return s
}

// Restart begins a new life on the same port with a new engine id. It is an
// error while the engine runs.
func (s *Server) Restart(ctx context.Context) error {
	old := s.current()
	if !old.isDead() {
		return errRunning
	}
	old.handlers.Wait()
	return tcpserver.WhenFree(ctx, func() error { return s.begin(ctx) })
}

// Script adds faults behind those already scripted.
func (s *Server) Script(faults ...Fault) error { return s.faults.Add(faults) }

// ClearFaults ends all scripted faults; those that happen now go on.
func (s *Server) ClearFaults() { s.faults.Clear() }

// Pause is what vLLM 0.33 does in the pause modes abort and wait, and while it sleeps: new
// requests to generate get 503, streams inside a 200, and what a decode was to fetch is
// freed at its prefill. /health says 200 all the same.
func (s *Server) Pause(on bool) { s.pausing.Store(on) }

// CoreState is what an engine core does besides its requests. Its zero value runs.
type CoreState struct {
	// Hung is a core that hangs while the API server answers (vllm#39863): the samples of its
	// metrics stay what they were, requests are accepted and make no progress, and streams get
	// their 200 but no event of the core.
	Hung bool `json:"hung"`
	// Paused is pause mode keep, and Sleeping is a sleeping engine that queues requests, as vLLM
	// before 0.33 does. The core stops as if it were hung. With Options.DevMode GET /is_paused
	// and /is_sleeping report it.
	Paused   bool `json:"paused"`
	Sleeping bool `json:"sleeping"`
}

// SetCore changes the state of all cores of the present life.
func (s *Server) SetCore(is CoreState) {
	s.state.Store(&is)
	s.current().hold(is != CoreState{})
}

// core is the present state.
func (s *Server) core() CoreState {
	if is := s.state.Load(); is != nil {
		return *is
	}
	return CoreState{}
}

// Requests lists what arrived, oldest first, as far as the record reaches.
// The bodies are shared: don't change them.
func (s *Server) Requests() []Request { return s.record.All() }

// ForgetRequests empties the record.
func (s *Server) ForgetRequests() { s.record.Forget() }

// Counters is a reading of what an engine did in all its lives.
type Counters = counters.Reading

// Counters reads them all.
func (s *Server) Counters() Counters {
	c, l := s.count.Read(), s.current()
	for rank, core := range l.cores {
		c.Running += core.Running()
		c.Waiting += core.Waiting()
		h := l.connector.Transfers(rank)
		c.TransfersExpired += h.Expired
		c.Pulls += h.Pulls
		if !l.isDead() {
			c.TransfersWaiting += h.Waiting
		}
	}
	c.Faults = s.faults.Fired()
	return c
}

// State is what GET /fake/state answers.
type State struct {
	EngineID   string   `json:"engine_id"`
	Role       Role     `json:"role"`
	Counters   Counters `json:"counters"`
	Violations []string `json:"violations"`
	BadParams  []string `json:"bad_params"`
	Refusals   []string `json:"refusals"`
}

// State reads everything an outside test may want to know.
func (s *Server) State() State {
	return State{
		EngineID: s.EngineID(), Role: s.opt.Role, Counters: s.Counters(),
		Violations: s.Violations(), BadParams: s.BadParams(), Refusals: s.Refusals(),
	}
}
