package fakevllm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/responses"
	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

const (
	maxHeaderBytes    = 64 << 10 // h11's limit
	readHeaderTimeout = 10 * time.Second
)

// life is one incarnation of the engine process.
type life struct {
	server    *Server
	count     *counters.Counters
	engineID  string // of rank 0
	started   time.Time
	ln        net.Listener
	open      sync.Map // its connections
	http      *http.Server
	connector connector.Connector
	cores     []*engine.Core   // one for each data-parallel rank
	responses *responses.Store // nil without StoreResponses
	adapters  adapters
	frozen    atomic.Pointer[[]byte] // the metrics of cores that are held; nil: they run
	turn      atomic.Uint64          // whose rank a request gets that names none
	serving   sync.WaitGroup         // the accept loop
	work      sync.WaitGroup         // loads that run, of clients that may have left, and pings
	done      chan struct{}          // closed when this life ends
	stop      chan struct{}          // closed when its requests end, not after done
	stopOnce  sync.Once
	handlers  sync.WaitGroup // none is added to a dead life
	failed    atomic.Bool    // they end with an error of the engine

	mu   sync.Mutex // guards dead
	dead bool
}

// begin starts a life at the engine's address.
func (s *Server) begin(ctx context.Context) error {
	addr, at, dpSize := s.next()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	l := &life{
		server: s, count: &s.count, started: time.Now(),
		adapters: adapters{list: startAdapters(&s.opt)},
		ln:       ln, done: make(chan struct{}), stop: make(chan struct{}),
	}
	if s.opt.StoreResponses {
		l.responses = responses.New()
	}
	events, err := kvevents.Start(ctx, s.opt.KVEvents, connector.Minor(s.opt.Version), s.opt.BlockSize)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	l.addCores(dpSize, at, events)
	if events != nil {
		l.serving.Go(events.Replay)
	}
	l.http = &http.Server{
		Handler: l, ConnState: l.track, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout: s.opt.IdleTimeout, ErrorLog: stdlog.New(panicLog{}, "", 0),
	}
	err = l.connector.Start(ctx)
	if err == nil {
		err = s.enter(l)
	}
	if err != nil {
		l.end()
		return err
	}
	l.serving.Go(func() { _ = l.http.Serve(l.ln) })
	if err := l.connector.Announce(); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return nil
}

// track records the open connections, which end by RST with the life.
func (l *life) track(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if l.open.Store(c, nil); l.isDead() {
			tcpserver.Reset(c)
		}
	case http.StateClosed, http.StateHijacked:
		l.open.Delete(c)
	case http.StateActive, http.StateIdle:
	}
}

// panicLog passes the panics of handlers in the log of net/http on to stderr, and nothing else.
type panicLog struct{}

func (panicLog) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("http: panic ")) {
		return os.Stderr.Write(line)
	}
	return len(line), nil
}

// addCores makes the cores of a life and the connector they share. Data-parallel ranks are
// cores behind one address: each has a queue, a cache, an engine id and a side channel of
// its own. The ids of ranks differ in their suffix, as in vLLM.
func (l *life) addCores(dpSize int, at *connector.Addresses, events *kvevents.Publisher) {
	o := &l.server.opt
	ids := []string{cmp.Or(o.EngineID, newUUID())}
	if dpSize > 1 {
		base := ids[0]
		ids = ids[:0]
		for rank := range dpSize {
			ids = append(ids, base+"_dp"+strconv.Itoa(rank))
		}
	}
	l.engineID = ids[0]
	conf := o.connector()
	conf.Count, conf.Controls = l.count, &l.server.controls
	l.connector = connector.New(conf, connector.Life{
		EngineIDs: ids, HTTP: l.ln.Addr().String(), At: at, Done: l.done, Work: &l.work, Crash: l.server.Kill,
	})
	for rank, id := range ids {
		l.cores = append(l.cores, engine.New(engine.Config{
			Rank: rank, ID: id, MaxRunning: o.MaxRunning, BlockSize: o.BlockSize, CacheBlocks: o.CacheBlocks, Events: events,
			PrefillRate: o.PrefillRate, LoadRate: o.LoadRate, ITLPerRequest: o.ITLPerRequest, ChunkTokens: o.ChunkTokens,
			Count: l.count, EndLeases: func() { l.connector.Transfers(rank) },
		}))
		events = nil // of the first alone
	}
}

// chooseRank returns the core that the request names, or the next one. What is no number is
// ignored, as by vLLM.
func (l *life) chooseRank(named string) (*engine.Core, error) {
	n := len(l.cores)
	rank, err := strconv.Atoi(named)
	switch {
	case err != nil:
		rank = int((l.turn.Add(1) - 1) % uint64(n)) //nolint:gosec // a handful
	case rank < 0 || rank >= n:
		return nil, pydantic.BadRequest("", "data_parallel_rank %d is out of range [0, %d).", rank, n)
	}
	l.cores[rank].Choose()
	return l.cores[rank], nil
}

// hold stops all cores, or lets them run. The metrics of a stopped core stay what they were,
// since the API server shows what the core sent with its last step.
func (l *life) hold(on bool) {
	for _, c := range l.cores {
		c.Hold(on)
	}
	if !on {
		l.frozen.Store(nil)
		return
	}
	page := l.coreMetrics()
	l.frozen.CompareAndSwap(nil, &page)
}

// enter registers a handler; false when the life is over.
func (l *life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dead {
		l.handlers.Add(1)
	}
	return !l.dead
}

func (l *life) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// failing is how long responses with the error of a failed engine may take.
const failing = 5 * time.Second

// fail ends all requests with the error of an engine whose core has ended, and then the life.
func (l *life) fail() {
	l.failed.Store(true)
	l.stopOnce.Do(func() { close(l.stop) })
	ctx, cancel := context.WithTimeout(context.Background(), failing)
	defer cancel()
	_ = l.http.Shutdown(ctx) // what is left is reset
	l.end()
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
	l.stopOnce.Do(func() { close(l.stop) })
	l.mu.Unlock()
	_ = l.ln.Close()
	l.open.Range(func(c, _ any) bool {
		tcpserver.Reset(c.(net.Conn)) //nolint:forcetypeassert // of track
		return true
	})
	_ = l.http.Close()
	l.connector.Close()
	if e := l.cores[0].Events; e != nil {
		e.Close()
	}
}

// newUUID is a random version 4 UUID; ids need to be unique, not secret.
func newUUID() string {
	a, b := rand.Uint64()&^0xf000|0x4000, rand.Uint64()&^(3<<62)|1<<63
	s, t := model.Hex16(a), model.Hex16(b)
	return s[:8] + "-" + s[8:12] + "-" + s[12:] + "-" + t[:4] + "-" + t[4:]
}

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
