package proxy

import (
	"cmp"
	"context"
	"errors"
	stdlog "log"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/connlimit"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// startServers starts a server on each listener. The channel receives the error of a
// server that ends by itself. requests is the parent of the contexts of all requests.
func (p *app) startServers(requests context.Context, work *sync.WaitGroup, ln *listeners) ([]*http.Server, <-chan error) {
	var servers []*http.Server
	failed := make(chan error, 3)
	start := func(s *http.Server, l net.Listener) {
		s.BaseContext = func(net.Listener) context.Context { return requests }
		servers = append(servers, s)
		work.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	start(p.limited(p.router, ln.clients, maxConnections(p.cfg), cors(p.cfg)))
	if ln.admin != nil {
		// A separate limit, so that operators can connect when clients use all connections.
		start(p.limited(p.adminRouter, ln.admin, adminConnections, httpapi.CORS{}))
	}
	if ln.pprof != nil {
		start(newServer(profiles(), p.log), ln.pprof)
	}
	return servers, failed
}

// limited returns a server for at most n connections, and its listener. Pages of the origins that o
// allows can read the refusals at that limit.
func (p *app) limited(h http.Handler, ln net.Listener, n int, o httpapi.CORS) (*http.Server, net.Listener) {
	limit, s := connlimit.New(n, p.log), newServer(p.closeWhenStopping(h), p.log)
	limit.Apply(s, httpapi.ExemptFromLimit, httpapi.RefuseAtLimit(o))
	return s, p.secure.Listen(limit.Listen(quickListener{ln, p.cfg.IdleTimeout}), p.log)
}

// delayShutdown waits for --shutdown-delay, during which the proxy serves requests and /readyz answers
// 503. The wait ends early if hurry is closed or a server fails; it returns the error of that server.
func (p *app) delayShutdown(hurry <-chan struct{}, failed <-chan error) error {
	if p.cfg.ShutdownDelay <= 0 {
		return nil
	}
	p.log.WithField("delay", p.cfg.ShutdownDelay).Info("stopping: not ready, still serving")
	timer := time.NewTimer(p.cfg.ShutdownDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hurry:
	case err := <-failed:
		return err
	}
	return nil
}

// closeWhenStopping announces the end of the connection in answers while the proxy is
// stopping, so that clients do not reuse connections that are about to be closed.
func (p *app) closeWhenStopping(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

const (
	// cutLimit bounds the wait for the end of cut requests, which are then logged and counted.
	cutLimit = 2 * time.Second
	cutPoll  = 10 * time.Millisecond
)

// shutdown stops accepting, waits for the running requests, and cuts those that are left after
// --shutdown-timeout. cut ends the contexts of the requests: most can still send an error to their clients.
func (p *app) shutdown(ctx context.Context, servers []*http.Server, cut context.CancelCauseFunc) error {
	p.log.WithField("limit", p.cfg.ShutdownTimeout).Info("stopping: no new requests, finishing the running ones")
	ctx = context.WithoutCancel(ctx)
	if stopAll(ctx, servers, p.cfg.ShutdownTimeout) {
		return nil
	}
	p.log.WithField("requests", p.handler.Requests()).Warn("requests were still running at the end of --shutdown-timeout and are cut")
	cut(leg.ErrStopping)
	if stopAll(ctx, servers, cutLimit) {
		return nil
	}
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	p.awaitCut()
	return errors.Join(errs...)
}

// stopAll stops accepting, and reports whether all requests end within a limit.
func stopAll(ctx context.Context, servers []*http.Server, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all := true
	for _, s := range servers {
		all = s.Shutdown(ctx) == nil && all
	}
	return all
}

// awaitCut waits until no request is running, or for cutLimit.
func (p *app) awaitCut() {
	ctx, cancel := context.WithTimeout(context.Background(), cutLimit)
	defer cancel()
	for p.handler.Requests() > 0 {
		if !sleep.For(ctx, cutPoll) {
			return
		}
	}
}

// adminConnections is the connection limit of --admin-listen.
const adminConnections = 64

// maxConnections returns the connection limit of clients; 0 means no limit.
func maxConnections(cfg *config.Proxy) int {
	return cmp.Or(cfg.MaxConnections, connlimit.ByDescriptors())
}

func newServer(h http.Handler, log logrus.FieldLogger) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       11 * time.Minute, // Google's load balancers reuse a connection for 10 min
		MaxHeaderBytes:    64 << 10,
		// nil would print to stderr.
		ErrorLog:  stdlog.New(debugLog{log.WithField("component", "http")}, "", 0),
		Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true) // no HTTP/2
	return s
}

// debugLog logs each line written to it at level debug.
type debugLog struct{ logrus.FieldLogger }

// Write implements io.Writer.
func (l debugLog) Write(line []byte) (int, error) {
	l.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}

// profiles serves Go's runtime profiles for --pprof-listen, a separate listener that clients cannot
// reach.
func profiles() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/debug/pprof/", pprof.Index)
	m.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	m.HandleFunc("/debug/pprof/profile", pprof.Profile)
	m.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	m.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return m
}
