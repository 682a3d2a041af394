package fakevllm

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/bootstrap"
	"github.com/pdmesh/pdmesh/sim/fakevllm/conns"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/record"
)

const (
	maxHeaderBytes    = 64 << 10 // h11's limit
	readHeaderTimeout = 10 * time.Second
)

// Server is one engine. Its methods may be called from any goroutine.
type Server struct {
	opt     Options
	count   counters
	pausing atomic.Bool // see Pause
	faults  fault.Script
	mute    atomic.Bool // no pings
	record  record.Record

	mu     sync.Mutex // guards everything below
	addr   string     // host:port, the same in every life
	boot   string     // host:port of the bootstrap server, likewise
	side   string     // host:port of a MoRI-IO engine's side channel, likewise
	alloc  []string   // host:port of the receivers, likewise
	notice NoticePlan
	life   *life
	closed bool

	aborts, violations, badKV, refusals notes
}

// life is one incarnation of the engine process.
type life struct {
	server    *Server
	count     *counters
	engineID  string // of rank 0
	started   time.Time
	ln        *conns.Listener
	http      *http.Server
	transfers *handover.Transfers  // of a Mooncake producer
	side      *handover.SideServer // of a Mooncake producer and of MoRI-IO; others have one for each core
	boot      *bootstrap.Server    // nil for all but a Mooncake producer
	receiver  *handover.Receiver   // nil for all but an LMCache decode
	pushers   []*zmq.Sender        // of an LMCache prefill, one for each rank
	client    handover.SideClient
	peers     bootstrap.Peers
	moriio    moriioTransfers
	fetches   sync.WaitGroup // loads that run, of clients that may have left
	done      chan struct{}  // closed when this life ends
	cores     []*core        // one for each data-parallel rank
	responses *responses     // nil without StoreResponses
	turn      atomic.Uint64  // whose rank a request gets that names none
	serving   sync.WaitGroup // the accept loop

	mu     sync.Mutex // guards everything below
	dead   bool
	active int           // handlers at work
	idle   chan struct{} // closed when dead and no handler is left
}

// Start brings an engine up; it serves when Start returns and until Close. The
// context bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{opt: o, addr: o.Addr, boot: o.BootstrapAddr, alloc: o.AllocAddrs}
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
// engine at its end.
func StartTest(t TB, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("start a fake vLLM: %v", err)
		return nil
	}
	t.Cleanup(s.Close)
	return s
}

// begin starts a life on s.addr.
func (s *Server) begin(ctx context.Context) error {
	s.mu.Lock()
	addr := s.addr
	s.mu.Unlock()
	raw, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	l := &life{
		server: s, count: &s.count, engineID: newUUID(), started: time.Now(),
		ln: conns.Track(raw), done: make(chan struct{}), idle: make(chan struct{}),
	}
	if s.opt.StoreResponses {
		l.responses = &responses{m: map[string]*response{}}
	}
	published, err := kvevents.Start(ctx, s.opt.KVEvents, minor(s.opt.Version), s.opt.BlockSize)
	if err != nil {
		return errors.Join(err, raw.Close())
	}
	l.addCores(published)
	if published != nil {
		l.serving.Go(published.Replay)
	}
	l.http = &http.Server{
		Handler: l, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout: s.opt.IdleTimeout, ConnState: l.ln.State, ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	if err := s.startChannels(ctx, l); err != nil {
		l.end()
		return err
	}
	s.mu.Lock()
	if s.closed || s.life != nil && !s.life.isDead() {
		s.mu.Unlock()
		l.end()
		return errRunning
	}
	s.addr = raw.Addr().String()
	if l.boot != nil {
		s.boot = l.boot.Addr()
	}
	if l.receiver != nil {
		s.alloc = l.receiver.Addresses()
	}
	s.life = l
	s.mu.Unlock()
	l.serving.Go(func() { _ = l.http.Serve(l.ln) })
	return s.startPings(l)
}

// startChannels brings up what other engines ask this one by.
func (s *Server) startChannels(ctx context.Context, l *life) (err error) {
	switch {
	case s.opt.Mode.HandsOver() || s.opt.Mode == P2P:
		return s.startSides(ctx, l)
	case s.opt.Mode == Mooncake && s.opt.Role != RoleDecode:
		l.transfers = handover.NewTransfers(s.opt.TransferTimeout, l.done, func(id string) {
			s.violation("%s engine: transfer_id %q: a decode has had it", s.opt.Role, id)
			l.count.reused.Add(1)
		})
		return s.startProducer(ctx, l)
	case s.opt.Mode == MoRIIORead, s.opt.Mode == MoRIIOWrite:
		return s.startMoRIIOChannels(ctx, l)
	case s.opt.Mode == LMCache:
		return s.startLMCache(ctx, l)
	}
	return nil
}

var errRunning = errors.New("the engine runs already, or was closed for good")

func (s *Server) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

// Address is host:port.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// URL is the base URL, without a trailing slash.
func (s *Server) URL() string { return "http://" + s.Address() }

// EngineID names the present incarnation, as in kv_transfer_params: its rank 0.
func (s *Server) EngineID() string { return s.current().engineID }

// SideChannel is the port of the side channel, 0 in plain mode.
func (s *Server) SideChannel() int {
	l := s.current()
	switch {
	case l.cores[0].side != nil:
		return l.cores[0].side.Port()
	case l.side != nil:
		return l.side.Port()
	}
	return 0
}

// Bootstrap is the port of the bootstrap server, 0 for all but a Mooncake producer.
func (s *Server) Bootstrap() int {
	if boot := s.current().boot; boot != nil {
		return boot.Port()
	}
	return 0
}

// Died is closed when the present life of the engine has ended.
func (s *Server) Died() <-chan struct{} { return s.current().done }

// Kill is kill -9: every connection ends by RST, new ones are refused, and
// hand-overs nobody fetched are lost. It doesn't wait for handlers.
func (s *Server) Kill() { s.current().end() }

// Restart begins a new life on the same port with a new engine id. It is an
// error while the engine runs.
func (s *Server) Restart(ctx context.Context) error {
	old := s.current()
	if !old.isDead() {
		return errRunning
	}
	if err := old.wait(ctx); err != nil {
		return err
	}
	return s.begin(ctx)
}

// Close kills the engine for good and waits until all its goroutines are gone.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	l := s.life
	s.mu.Unlock()
	l.end()
	// Without a deadline: handlers see the end of the life at once.
	<-l.idle
	l.serving.Wait()
	l.fetches.Wait()
}

// Shutdown stops accepting, lets running requests finish until ctx ends, and
// then closes.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.current().http.Shutdown(ctx)
	s.Close()
	return err
}

// CloseIdle ends the connections that wait for a next request, as uvicorn does
// to those idle for five seconds.
func (s *Server) CloseIdle() { s.current().ln.CloseIdle() }

// enter registers a handler; false when the life is over.
func (l *life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return false
	}
	l.active++
	return true
}

func (l *life) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.dead && l.active == 0 {
		close(l.idle)
	}
}

func (l *life) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// end is the death of a life; only the first call does anything.
func (l *life) end() {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return
	}
	l.dead = true
	close(l.done)
	if l.active == 0 {
		close(l.idle)
	}
	l.mu.Unlock()
	l.ln.ResetAll()
	_ = l.http.Close()
	for _, c := range l.cores {
		if c.side != nil {
			l.server.opt.Shared.Leave(c.ledger)
			c.side.Close()
		}
	}
	if l.side != nil {
		l.side.Close()
	}
	if l.boot != nil {
		l.boot.Close()
	}
	l.endLMCache()
	for _, c := range l.cores {
		if c.events != nil {
			c.events.Close()
		}
	}
	l.client.Close()
}

func (l *life) wait(ctx context.Context) error {
	select {
	case <-l.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newUUID is a random version 4 UUID; ids need to be unique, not secret.
func newUUID() string {
	a, b := rand.Uint64()&^0xf000|0x4000, rand.Uint64()&^(3<<62)|1<<63
	s, t := model.Hex16(a), model.Hex16(b)
	return s[:8] + "-" + s[8:12] + "-" + s[12:] + "-" + t[:4] + "-" + t[4:]
}

// advertised is where other engines reach the side channel.
func (l *life) advertised(c *core) (host string, port int) {
	side := l.side
	if c.side != nil {
		side = c.side
	}
	host = l.server.opt.SideChannelHost
	if host == "" {
		host, _, _ = net.SplitHostPort(side.Ln.Addr().String())
	}
	return host, side.Port()
}
