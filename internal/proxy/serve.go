// Package proxy wires the parts of a proxy together, runs them, and stops them in
// order. Command proxy calls Serve.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/bridgemetrics"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/etcd"
	"github.com/pdmesh/pdmesh/internal/proxy/memory"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/proxy/systemd"
)

// Serve runs the proxy until ctx ends. It closes the parts in reverse order: after --shutdown-delay, the
// proxy stops accepting requests, finishes the running ones, ends its presence, and then closes etcd.
func Serve(ctx context.Context, cfg *config.Proxy, log *logrus.Logger, stdout io.Writer) error {
	if cfg.PprofListen != "" {
		memory.Profile()
	}
	certificates, err := secure.Open(cfg, log)
	if err != nil {
		return err
	}
	// Sockets first: a port in use is the most common mistake, and is reported before etcd starts.
	ln, err := openListeners(cfg)
	if err != nil {
		return err
	}
	defer ln.close()
	var own *etcd.Handle
	bridge, err := newBridge(ctx, cfg, certificates, log, func(o lease.RegistrarOptions) *lease.Registrar {
		o.Layout, _ = schema.NewLayout(cfg.EtcdPrefix) // config has validated it
		return lease.NewRegistrar(own.Client, o)
	})
	if err != nil {
		return err
	}
	if bridge != nil {
		defer func() { _ = bridge.Close() }() // if it did not run; Run closes it, too
	}
	own, err = etcd.Open(ctx, cfg, certificates, log)
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Cause(ctx))) {
		log.Info("stopped while etcd was starting")
		own.Close()
		return nil
	}
	if err != nil {
		return err
	}
	defer own.Close()
	notices, err := openLMCacheNotices(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer notices.close()
	p, err := build(cfg, log, own, certificates, ln.clients.Addr().String(), reachable(ctx, ln.clients, cfg.EtcdEndpoints),
		ln.adminURL(ctx, certificates.Scheme(), cfg.EtcdEndpoints), notices)
	if err != nil {
		return err
	}
	return p.run(ctx, ln, bridge, func() {
		fmt.Fprintf(stdout, "pdmesh-proxy %s: serving on %s://%s, etcd at %s, prefix %s\n", version.String(), certificates.Scheme(), ln.clients.Addr(), own.Describe(), cfg.EtcdPrefix)
	})
}

// run starts the parts, waits until ctx ends or a server fails, and stops them. started is
// called once the proxy serves.
func (p *app) run(ctx context.Context, ln *listeners, bridge *zmqregister.Bridge, started func()) error {
	var work sync.WaitGroup
	stopBackground := p.startBackground(ctx, &work, bridge)
	defer func() {
		stopBackground()
		work.Wait()
		p.close()
	}()
	requests, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	servers, failed := p.startServers(requests, &work, ln)
	memory.Settle()
	started()

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	p.stopping.Store(true)
	if err == nil {
		err = p.delayShutdown(cli.Hurry(ctx), failed)
	}
	p.queues.Close()
	p.board.Close()
	return errors.Join(err, p.shutdown(ctx, servers, cut))
}

// startBackground starts everything except the servers. It outlives ctx, because requests
// that run when ctx ends need it; stop ends it.
func (p *app) startBackground(ctx context.Context, work *sync.WaitGroup, bridge *zmqregister.Bridge) (stop func()) {
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.background(bg, work)
	p.secure.Watch(bg, work)
	work.Go(func() {
		systemd.Proxy{Ready: p.ready, CheckAlive: p.checkAlive, ShutdownTimeout: p.cfg.ShutdownDelay + p.cfg.ShutdownTimeout, Log: p.log}.Notify(bg, ctx.Done())
	})
	if bridge != nil {
		p.registry.MustRegister(bridgemetrics.Collector(bridge.Counts))
		work.Go(func() {
			if err := bridge.Run(bg); err != nil && !errors.Is(err, context.Canceled) {
				p.log.WithError(err).Error("registration by ZeroMQ ended")
			}
		})
	}
	return stop
}

// close closes the parts that the background work used.
func (p *app) close() {
	p.tracker.Close()
	p.upstream.Close()
	p.closeTracer()
}

// checkAlive checks the parts that every request needs: the router, the snapshot, and the locks of watcher and
// scheduler. systemd's watchdog depends on it. It does not use the network, so that a busy proxy is not
// restarted.
func (p *app) checkAlive(ctx context.Context) error {
	done := make(chan int, 1)
	go func() { // leaks if the proxy hangs; the watchdog then kills the process
		w := &statusOnly{header: http.Header{}, code: http.StatusOK}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/livez", nil)
		if err != nil {
			return
		}
		p.router.ServeHTTP(w, req)
		_ = p.watcher.Status()
		for _, in := range p.watcher.Snapshot().All() {
			_ = p.tracker.Available(in.Key)
			_ = p.sched.InFlight(in.Key)
		}
		done <- w.code
	}()
	select {
	case code := <-done:
		if code == http.StatusOK {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("router, watcher or scheduler does not respond")
}

// statusOnly is a response writer that keeps only the status.
type statusOnly struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (w *statusOnly) Header() http.Header { return w.header }

// Write implements http.ResponseWriter.
func (w *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (w *statusOnly) WriteHeader(code int) { w.code = code }
