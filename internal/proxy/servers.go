package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/connlimit"
	"github.com/pdmesh/pdmesh/internal/framing"
	"github.com/pdmesh/pdmesh/internal/front"
)

// startServers starts a server at each listener. The channel has the error of one that
// ended by itself.
func (p *app) startServers(work *sync.WaitGroup, ln *listeners) ([]server, <-chan error) {
	var servers []server
	failed := make(chan error, 3)
	start := func(s server, l net.Listener) {
		servers = append(servers, s)
		work.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	clients := connlimit.New(maxConnections(p.cfg), p.log)
	start(p.clientServer(clients), p.secure.Listen(clients.Listen(ln.clients), p.log))
	if ln.admin != nil {
		// Operators have places of their own: they get in while clients have taken all of theirs.
		operators, s := connlimit.New(adminConnections, p.log), newServer(p.adminRouter)
		operators.Watch(s.Server)
		start(s, p.secure.Listen(operators.Listen(ln.admin), p.log))
	}
	if ln.pprof != nil {
		start(newServer(profiles()), ln.pprof)
	}
	return servers, failed
}

// shutdown stops accepting, waits for the running requests, and cuts what is
// left when the time is over.
func shutdown(ctx context.Context, limit time.Duration, log logrus.FieldLogger, servers []server) error {
	log.WithField("limit", limit).Info("stopping: no new requests, finishing the running ones")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	var errs []error
	for _, s := range servers {
		if err := s.Shutdown(ctx); err != nil {
			log.Warn("requests were still running at the end of --shutdown-timeout and are cut")
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// adminConnections is how many connections --admin-listen takes at once.
const adminConnections = 64

// maxConnections is how many clients may be connected.
func maxConnections(cfg *config.Proxy) int {
	if cfg.MaxConnections > 0 {
		return cfg.MaxConnections
	}
	return connlimit.ByDescriptors()
}

// server is what http.Server and front.Server have in common.
type server interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// clientServer is the server at the clients' address. limit counts its connections.
func (p *app) clientServer(limit *connlimit.Limit) server {
	std := newServer(p.router)
	limit.Watch(std.Server)
	if p.cfg.Server == config.ServerStd {
		return std
	}
	return front.New(front.Options{
		Routes: p.direct, Rest: std.Server, IdleTimeout: std.IdleTimeout, Limit: limit, Log: p.log.WithField("component", "http"),
	})
}

// stdServer is the standard library's server. framing refuses ambiguous requests before it.
type stdServer struct{ *http.Server }

// Serve implements server.
func (s stdServer) Serve(l net.Listener) error { return s.Server.Serve(framing.Listener(l)) }

func newServer(h http.Handler) stdServer {
	return stdServer{&http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// net/http would print broken connections of clients here.
		ErrorLog: nil,
	}}
}

// profiles serves Go's own profiles, for --pprof-listen. They have a listener of their
// own, so that clients cannot reach them.
func profiles() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/debug/pprof/", pprof.Index)
	m.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	m.HandleFunc("/debug/pprof/profile", pprof.Profile)
	m.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	m.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return m
}
