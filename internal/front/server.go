package front

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/connlimit"
	"github.com/pdmesh/pdmesh/internal/framing"
)

// Options configure a Server.
type Options struct {
	// Routes are the handlers of POST requests by path. A handler must not use the
	// request or its header after it has returned. It may panic with
	// http.ErrAbortHandler to break the connection.
	Routes map[string]http.HandlerFunc
	// Rest serves all other requests. It is shut down with the Server. Its
	// ReadHeaderTimeout also bounds the wait for the first byte of a new connection.
	Rest *http.Server
	// IdleTimeout bounds the wait for the next request of a connection. Default 2 min.
	IdleTimeout time.Duration
	// Limit is told of each connection until its end or hand-over. The caller makes
	// Rest tell it of those that it has. nil: no limit.
	Limit *connlimit.Limit
	Log   logrus.FieldLogger
}

// Server serves HTTP/1.1. It is safe for concurrent use.
type Server struct {
	opts     Options
	routes   map[string]*route
	clock    clock
	watch    *watcher // nil: all connections go to Rest
	handover *handover

	stopping  atomic.Bool
	connEnded chan struct{} // for drain: a connection has ended

	mu        sync.Mutex // guards what follows
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
}

// firstByteTimeout bounds the wait for the first byte of a new connection.
func (s *Server) firstByteTimeout() time.Duration {
	if d := s.opts.Rest.ReadHeaderTimeout; d > 0 {
		return min(d, s.opts.IdleTimeout)
	}
	return s.opts.IdleTimeout
}

// New builds a Server. On systems without epoll all connections go to Rest.
func New(o Options) *Server {
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = 2 * time.Minute
	}
	s := &Server{
		opts: o, routes: make(map[string]*route, len(o.Routes)), handover: newHandover(), connEnded: make(chan struct{}, 1),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
	}
	o.Limit.WhenFull(s.makeRoom)
	for path, h := range o.Routes {
		s.routes[path] = newRoute(path, h)
	}
	return s
}

// Serve accepts connections until Shutdown or Close, and returns
// http.ErrServerClosed then. It is called once.
func (s *Server) Serve(l net.Listener) error {
	w, err := newWatcher()
	if err != nil {
		s.opts.Log.WithError(err).Debug("connections are left to the standard library's server")
		return s.opts.Rest.Serve(framing.Listener(l))
	}
	s.mu.Lock()
	if s.stopping.Load() {
		s.mu.Unlock()
		_ = w.close()
		return http.ErrServerClosed
	}
	s.watch = w
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	var work sync.WaitGroup
	work.Go(w.run)
	work.Go(func() {
		s.handover.address = l.Addr()
		if err := s.opts.Rest.Serve(s.handover); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Log.WithError(err).Error("the server for all other requests has ended")
		}
	})
	err = s.accept(l, &work)
	_ = s.handover.Close()
	work.Wait()
	return err
}

// accept starts connections; each has one goroutine.
func (s *Server) accept(l net.Listener, work *sync.WaitGroup) error {
	defer func() { _ = l.Close() }()
	var pause time.Duration
	for {
		nc, err := l.Accept()
		if err != nil {
			if s.stopping.Load() {
				return s.drain()
			}
			var temporary interface{ Temporary() bool }
			if !errors.As(err, &temporary) || !temporary.Temporary() {
				return errors.Join(err, s.Close(), s.drain())
			}
			// The process has no descriptors left, or the like, which passes.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.opts.Log.WithError(err).WithField("pause", pause).Warn("cannot accept a connection")
			timer := time.NewTimer(pause)
			<-timer.C
			continue
		}
		pause = 0
		tcp, ok := nc.(*net.TCPConn)
		if !ok {
			s.handover.give(nc, nil)
			continue
		}
		c, err := newConn(s, tcp)
		if err != nil || !s.add(c) {
			_ = nc.Close()
			continue
		}
		work.Go(c.serve)
	}
}

// drain waits until the last connection has ended, then closes the watcher.
func (s *Server) drain() error {
	for s.openConns() > 0 {
		<-s.connEnded
	}
	_ = s.watch.close() // no connection is left that it should watch
	return http.ErrServerClosed
}

func (s *Server) openConns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	s.opts.Limit.Opened()
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.opts.Limit.Closed()
	select {
	case s.connEnded <- struct{}{}:
	default:
	}
}

// newConnGrace is the age up to which Shutdown spares a connection without any bytes
// yet: its client may be about to send its first request.
const newConnGrace = 5 * time.Second

// Shutdown stops accepting, closes idle connections, waits for the running requests
// and shuts down Rest. When ctx ends first, it returns the error of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	rest := make(chan error, 1)
	go func() { rest <- s.opts.Rest.Shutdown(ctx) }()
	tick := time.NewTicker(100 * time.Millisecond) // connections pass newConnGrace, or turn idle
	defer tick.Stop()
	for s.closeIdle() > 0 {
		select {
		case <-ctx.Done():
			<-rest //nolint:errcheck // ctx has ended it, too
			return ctx.Err()
		case <-tick.C:
		}
	}
	return <-rest
}

// Close ends everything at once.
func (s *Server) Close() error {
	s.stop()
	s.mu.Lock()
	for c := range s.conns {
		c.abort()
	}
	s.mu.Unlock()
	return s.opts.Rest.Close()
}

func (s *Server) stop() {
	s.stopping.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		_ = l.Close()
	}
}

// closeIdle closes the connections that wait for a request, and gives the number of
// those that are left.
func (s *Server) closeIdle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		young := c.state.Load() == stateNew && time.Since(c.opened) < newConnGrace
		if !young && (c.state.CompareAndSwap(stateIdle, stateClosed) || c.state.CompareAndSwap(stateNew, stateClosed)) {
			c.abort()
		}
	}
	return len(s.conns)
}

// makeRoom closes up to n connections that wait for a request, for connlimit.Limit.
// It begins with those on which no byte has ever come.
func (s *Server) makeRoom(n int) (closed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, state := range []int32{stateNew, stateIdle} {
		for c := range s.conns {
			if closed == n {
				return closed
			}
			young := state == stateNew && time.Since(c.opened) < connlimit.Spare
			if !young && c.state.CompareAndSwap(state, stateClosed) {
				c.abort()
				closed++
			}
		}
	}
	return closed
}
