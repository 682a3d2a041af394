package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/connlimit"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/framing"
	"github.com/pdmesh/pdmesh/internal/front"
	"github.com/pdmesh/pdmesh/internal/proxy/etcd"
	"github.com/pdmesh/pdmesh/internal/proxy/memory"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/proxy/systemd"
	"github.com/pdmesh/pdmesh/internal/version"
)

// Serve runs the proxy until ctx ends and stops it in order: take no new
// requests, finish the running ones, then let go of the membership, then of etcd.
func Serve(ctx context.Context, cfg *config.Proxy, log *logrus.Logger, stdout io.Writer) error {
	certificates, err := secure.Open(cfg, log)
	if err != nil {
		return err
	}
	// Sockets first: a port in use is the commonest mistake and must not cost
	// the start of an etcd.
	ln, err := listen(net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)), "--port")
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	var adminLn net.Listener
	if cfg.AdminListen != "" {
		if adminLn, err = listen(cfg.AdminListen, "--admin-listen"); err != nil {
			return err
		}
		defer func() { _ = adminLn.Close() }()
	}

	var pprofLn net.Listener
	if cfg.PprofListen != "" {
		if pprofLn, err = listen(cfg.PprofListen, "--pprof-listen"); err != nil {
			return err
		}
		defer func() { _ = pprofLn.Close() }()
	}

	var own *etcd.Handle
	bridge, err := newBridge(ctx, cfg, certificates, log, func(o lease.RegistrarOptions) *lease.Registrar {
		o.Layout, _ = schema.NewLayout(cfg.EtcdPrefix) // build has looked at it
		return lease.NewRegistrar(own.Client, o)
	})
	if err != nil {
		return err
	}
	if bridge != nil {
		defer func() { _ = bridge.Close() }() // Run has
	}
	own, err = etcd.Open(ctx, cfg, certificates, log)
	if err != nil {
		return err
	}
	defer own.Close()

	heard, err := openNotices(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer heard.close()
	p, err := build(cfg, log, own, certificates, ln.Addr().String(), heard)
	if err != nil {
		return err
	}
	// The background work outlives the requests that it serves.
	bg, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	p.background(bg, &work)
	certificates.Watch(bg, &work)
	work.Go(func() {
		systemd.Proxy{Ready: p.ready, Sane: p.sane, ShutdownTimeout: cfg.ShutdownTimeout, Log: log}.Tell(bg, ctx.Done())
	})
	if bridge != nil {
		p.countPings(bridge)
		work.Go(func() { p.logEnd("registration by ZeroMQ", bridge.Run(bg)) })
	}
	defer func() {
		stopBackground()
		work.Wait()
		p.tracker.Close()
		p.upstream.Close()
		p.closeTracer()
	}()

	clients := connlimit.New(maxConnections(cfg), log)
	servers := []server{p.clientServer(clients)}
	failed := make(chan error, 2)
	start := func(s server, l net.Listener) {
		work.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	start(servers[0], certificates.Listen(clients.Listen(ln), log))
	if adminLn != nil {
		// Whoever looks after the proxy gets in while clients have all their places.
		operators, s := connlimit.New(adminConnections, log), newServer(p.adminRouter)
		operators.Watch(s.Server)
		servers = append(servers, s)
		start(s, certificates.Listen(operators.Listen(adminLn), log))
	}
	if pprofLn != nil {
		servers = append(servers, newServer(profiles()))
		start(servers[len(servers)-1], pprofLn)
	}
	memory.Settle()
	fmt.Fprintf(stdout, "proxy %s: serving on %s://%s, etcd at %s\n", version.String(), certificates.Scheme(), ln.Addr(), own.Describe())
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	p.stopping.Store(true)
	p.board.Close()
	return errors.Join(err, shutdown(ctx, cfg.ShutdownTimeout, log, servers))
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

// clientServer is the server at the clients' address, whose connections are
// counted in limit.
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

// stdServer is the standard library's server behind the check of what it takes.
type stdServer struct{ *http.Server }

// Serve implements server.
func (s stdServer) Serve(l net.Listener) error { return s.Server.Serve(framing.Listener(l)) }

func newServer(h http.Handler) stdServer {
	return stdServer{&http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// What net/http prints here are clients' broken connections.
		ErrorLog: nil,
	}}
}

func listen(address, flag string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("something else listens on %s already: stop it or choose another address with %s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("not allowed to listen on %s: ports below 1024 need privileges; choose another with %s", address, flag)
	case err != nil:
		return nil, fmt.Errorf("listen on %s (%s): %w", address, flag, err)
	}
	return ln, nil
}
