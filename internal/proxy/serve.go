package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/accesslog"
	"github.com/pdmesh/pdmesh/internal/admin"
	"github.com/pdmesh/pdmesh/internal/apikeys"
	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/connlimit"
	"github.com/pdmesh/pdmesh/internal/dashboard"
	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/framing"
	"github.com/pdmesh/pdmesh/internal/front"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvfollow"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/metrics"
	"github.com/pdmesh/pdmesh/internal/netguard"
	"github.com/pdmesh/pdmesh/internal/notice"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/tracing"
	"github.com/pdmesh/pdmesh/internal/upstream"
	"github.com/pdmesh/pdmesh/internal/version"
)

// Serve runs the proxy until ctx ends and stops it in order: take no new
// requests, finish the running ones, then let go of the membership, then of etcd.
func Serve(ctx context.Context, cfg *config.Proxy, log *logrus.Logger, stdout io.Writer) error {
	secure, err := openCertificates(cfg, log)
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

	var etcd *etcdHandle
	bridge, err := newBridge(ctx, cfg, secure, log, func(o discovery.RegistrarOptions) *discovery.Registrar {
		o.Layout, _ = discovery.NewLayout(cfg.EtcdPrefix) // build has looked at it
		return discovery.NewRegistrar(etcd.client, o)
	})
	if err != nil {
		return err
	}
	if bridge != nil {
		defer func() { _ = bridge.Close() }() // Run has
	}
	etcd, err = openEtcd(ctx, cfg, secure, log)
	if err != nil {
		return err
	}
	defer etcd.close()

	heard, err := openNotices(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer heard.close()
	p, err := build(cfg, log, etcd, secure, ln.Addr().String(), heard)
	if err != nil {
		return err
	}
	// The background work outlives the requests that it serves.
	bg, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	p.background(bg, &work)
	secure.watch(bg, &work)
	work.Go(func() { p.tellSystemd(bg, ctx.Done()) })
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
	start(servers[0], secure.listen(clients.Listen(ln), log))
	if adminLn != nil {
		// Whoever looks after the proxy gets in while clients have all their places.
		operators, s := connlimit.New(adminConnections, log), newServer(p.adminRouter)
		operators.Watch(s.Server)
		servers = append(servers, s)
		start(s, secure.listen(operators.Listen(adminLn), log))
	}
	if pprofLn != nil {
		servers = append(servers, newServer(profiles()))
		start(servers[len(servers)-1], pprofLn)
	}
	settleMemory()
	fmt.Fprintf(stdout, "proxy %s: serving on %s://%s, etcd at %s\n", version.String(), secure.scheme(), ln.Addr(), etcd.describe())
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

// app is the wired program.
type app struct {
	cfg      *config.Proxy
	log      *logrus.Logger
	id       string
	store    *discovery.Store
	watcher  *discovery.Watcher
	presence *discovery.Presence
	loads    *discovery.Loads   // nil: off
	kv       *kvfollow.Follower // nil: off
	tracker  *health.Tracker
	sched    *sched.Scheduler
	upstream upstream.Client
	prober   prober
	tracer   *tracing.Tracer // nil: off
	registry *prometheus.Registry
	secure   *certificates
	keys     *apikeys.Ring // nil: clients need none
	flags    *flagInstances
	noticed  *notice.Counts
	access   *accesslog.Log   // nil: off
	board    *dashboard.Board // nil: off
	stopping atomic.Bool
	level    *logging.Level
	begun    chan struct{} // closed when requests need not wait for the start any more

	router, adminRouter http.Handler
	direct              map[string]http.HandlerFunc // routes that need no router
}

func build(cfg *config.Proxy, log *logrus.Logger, etcd *etcdHandle, secure *certificates, address string, heard *notices) (*app, error) {
	layout, err := discovery.NewLayout(cfg.EtcdPrefix)
	if err != nil {
		return nil, err
	}
	p := &app{cfg: cfg, log: log, secure: secure, id: ulid.Make().String(), access: newAccessLog(cfg, log), begun: make(chan struct{})}
	p.level = logging.NewLevel(log)
	guard := netguard.New(cfg.InstanceAllow)
	prober := newProber(cfg, guard, secure)
	actor := "proxy " + p.id
	p.store = discovery.NewStore(etcd.client, layout, actor)
	p.watcher = discovery.NewWatcher(etcd.client, discovery.WatcherOptions{
		Layout: layout, Prober: prober, Model: cfg.Model, Proxy: proxyName(cfg, address), Actor: actor,
		Log:             log.WithField("component", "watcher"),
		WaitingInterval: cfg.WaitingRetryInterval, AuditInterval: cfg.AuditInterval,
		ProbeTimeout: cfg.ProbeTimeout,
		OrphanGrace:  cfg.OrphanGrace, StateDir: cfg.StateDir, Check: usable(cfg.Connector), Learns: learns(cfg.Connector),
		Prepare: func(s *instance.Snapshot) { p.sched.Prepare(s) },
	})
	p.noticed = notice.NewCounts(p.watcher.Snapshot)
	if cfg.LoadDigests {
		p.loads = discovery.NewLoads(etcd.client, layout, log.WithField("component", "load"))
	}
	p.presence = newPresence(etcd.client, layout, p, address)
	p.tracker = health.New(health.Options{
		Source: p.watcher, Prober: prober, Log: log.WithField("component", "health"),
		MaxFailures: cfg.MaxFailures, Ejection: cfg.EjectionTime, SlowStart: cfg.SlowStart,
		SilenceLimit: cfg.SilenceLimit, ProbeTimeout: cfg.ProbeTimeout, PrefillOptional: cfg.Fallback == config.FallbackDecode,
		Heard:   func(k instance.Key) uint64 { return p.sched.Heard(k) },
		OnEject: func(k instance.Key, dead bool, why string) { p.sched.Abandon(k, dead, why) },
	})
	kinds, err := policies(cfg)
	if err != nil {
		return nil, err
	}
	index := newKVIndex(cfg)
	p.sched = sched.New(sched.Options{
		Source: p.watcher, Health: p.tracker, Connector: dialects(cfg.Connector), Build: builds(cfg), Silent: p.tracker.Suspect,
		PrefillOptional: cfg.Fallback == config.FallbackDecode,
		Policies:        kinds, NoBinding: !cfg.ClientBound, Zone: cfg.Zone, Start: rand.Uint64(), CacheWeight: float64(cfg.CacheWeight), Caches: caches(index),
	})
	p.upstream, err = upstream.New(cfg.Upstream, upstream.Options{ConnectTimeout: cfg.ConnectTimeout, Guard: guard, TLS: secure.engines.Client})
	if err != nil {
		return nil, err
	}
	p.prober = prober
	if p.keys, err = openKeys(cfg, log); err != nil {
		return nil, err
	}
	if p.tracer, err = openTracer(cfg, p.id, log); err != nil {
		return nil, err
	}
	p.flags = newFlagInstances(cfg, proxyName(cfg, address), p.watcher)

	reg := prometheus.NewRegistry()
	p.registry = reg
	counters := metrics.New(reg, version.String())
	metrics.Membership{
		Snapshot: p.watcher.Snapshot, InFlight: p.sched.Each, Picks: p.sched.Picks, Both: p.sched.Both, Elsewhere: p.sched.Elsewhere, Hits: p.sched.Hits, Available: p.tracker.Available,
		Etcd: func() metrics.Etcd { return p.etcdMetrics(etcd) },
	}.Register(reg)
	options := forward.Options{
		Notices: heard.asker, Notified: cfg.LMCacheNotifyTimeout,
		Picker: freshPicker{p.sched, p.watcher, p.begun, new(atomic.Bool)}, Health: p.tracker, Upstream: p.upstream, Log: log.WithField("component", "forward"),
		Between: counters.Between, Tracer: p.tracer, Recorder: recorder{Metrics: counters, noticed: p.noticed, access: p.access, board: func() *dashboard.Board { return p.board }},
		EngineKey: cfg.EngineAPIKey, TraceAll: cfg.TraceHeaders,
		Fallback: cfg.Fallback == config.FallbackDecode, SessionHeader: sessionHeader(cfg), Disaggregate: disaggregate(cfg),
		MaxBody: cfg.MaxBodyBytes, MaxBodies: bodiesMemory(cfg), MaxAttempts: cfg.MaxAttempts,
		RetryRatio: retryRatio(cfg.RetryBudget),
		Prefill:    cfg.PrefillTimeout, FirstByte: cfg.DecodeFirstByteTimeout,
		Idle: cfg.IdleTimeout, KVBudget: cfg.KVLeaseBudget, RewriteHost: cfg.RewriteRemoteHost, NonStream: cfg.NonStreamTimeout,
	}
	allow(p.keys, cfg.AdminAPIKey, &options)
	h, err := forward.New(options)
	if err != nil {
		return nil, err
	}
	metrics.Load{Each: p.sched.Totals, Digests: p.digestMetrics}.Register(reg)
	secure.metrics().Register(reg)
	metrics.APIKeys{Ring: p.keys}.Register(reg)
	metrics.Bodies{Memory: h.BodyMemory}.Register(reg)
	if p.kv = newKVEvents(cfg, index, p.watcher.Snapshot, prober, guard); p.kv != nil {
		metrics.KVEvents{Status: p.kv.Status}.Register(reg)
	}
	deps := httpapi.Deps{
		Data: httpapi.Completions{
			Generate: h.Completion, Passthrough: h.Passthrough, Form: h.Form, Question: h.Question, Stored: h.Stored, Explain: h.Explain, Requests: h.Requests,
			FanOut: func(endpoint string) forward.HandlerFunc { return h.FanOut(endpoint, p.watcher.Snapshot) },
			Models: func(id func(*http.Request) string) forward.HandlerFunc {
				return h.Models(p.watcher.Snapshot, id)
			},
		},
		Admin: admin.New(admin.Options{
			Store: p.store, Members: p.watcher, Prober: prober, Guard: guard, Model: cfg.Model, Proxies: p.flags.fleet,
			PendingTTL: time.Duration(cfg.MaxWaitingRetries) * cfg.WaitingRetryInterval,
		}),
		Members: p.watcher, Load: p.sched, Details: p.listLoad, Digests: p.digests, KVEvents: p.kvStatus, Opinion: opinion{p.tracker}, Etcd: func() httpapi.EtcdStatus { return p.etcdStatus(etcd) },
		Ready: p.ready, Metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), Log: log.WithField("component", "http"), LogLevel: p.level,
		CORS: httpapi.CORS{
			Origins: cfg.AllowedOrigins, Methods: cfg.AllowedMethods, Headers: cfg.AllowedHeaders, Credentials: cfg.AllowCredentials,
		},
		ClientKeys: p.keys, AdminKey: cfg.AdminAPIKey, Version: version.String(), ID: p.id,
		Fallback: cfg.Fallback == config.FallbackDecode,
		Limits:   limits(cfg), Connector: cfg.Connector, Notices: p.notices,
	}
	if p.board = p.newBoard(deps.List, deps.Etcd, h.Requests, address); p.board != nil {
		deps.Dashboard = p.board
	}
	p.router = httpapi.NewRouter(deps, cfg.AdminListen != "")
	p.direct = httpapi.Direct(deps)
	p.adminRouter = httpapi.NewAdminRouter(deps)
	return p, nil
}

// limits are the numbers behind decisions that an operator may wonder about.
func limits(cfg *config.Proxy) map[string]any {
	return map[string]any{
		"max_attempts": cfg.MaxAttempts, "max_failures": cfg.MaxFailures, "retry_budget_percent": cfg.RetryBudget,
		"max_waiting_retries": cfg.MaxWaitingRetries, "waiting_retry_interval": cfg.WaitingRetryInterval.String(),
		"ejection_time": cfg.EjectionTime.String(), "slow_start": cfg.SlowStart.String(),
		"silence_limit": cfg.SilenceLimit.String(), "probe_timeout": cfg.ProbeTimeout.String(), "fallback": cfg.Fallback,
		"connect_timeout": cfg.ConnectTimeout.String(), "prefill_timeout": cfg.PrefillTimeout.String(),
		"decode_first_byte_timeout": cfg.DecodeFirstByteTimeout.String(), "non_stream_timeout": cfg.NonStreamTimeout.String(),
		"max_body_bytes": cfg.MaxBodyBytes, "max_bodies_memory": bodiesMemory(cfg),
		"idle_timeout": cfg.IdleTimeout.String(), "kv_lease_budget": cfg.KVLeaseBudget.String(),
		"max_connections": maxConnections(cfg), "load_digests": cfg.LoadDigests, "scrape_interval": cfg.ScrapeInterval.String(),
		"prefill_policy": cfg.PrefillPolicy, "decode_policy": cfg.DecodePolicy, "client_bound": cfg.ClientBound, "zone": cfg.Zone,
	}
}

// policies are those of the roles.
func policies(cfg *config.Proxy) (map[instance.Role]policy.Kind, error) {
	of := map[instance.Role]policy.Kind{}
	for role, name := range map[instance.Role]string{instance.Prefill: cfg.PrefillPolicy, instance.Decode: cfg.DecodePolicy} {
		kind, err := policy.Find(name)
		if err != nil {
			return nil, fmt.Errorf("policy %q of %s instances: %w", name, role, err)
		}
		of[role] = kind
	}
	return of, nil
}

// sessionHeader is the header that names sessions, "" while none are bound.
func sessionHeader(cfg *config.Proxy) string {
	if cfg.ClientBound || cfg.PrefillPolicy == policy.Session || cfg.DecodePolicy == policy.Session {
		return cfg.ClientBoundKey
	}
	return ""
}

// retryRatio turns the percentage of --retry-budget into a share; none at all
// is as little as the handler can be told, and not its default.
func retryRatio(percent int) float64 { return max(float64(percent)/100, 1e-9) }

// dialects resolves the connector of an instance: its record's own, or the
// proxy's default. An unknown one resolves to nothing and pairs with nobody
// that this proxy could talk to; the watcher shows it as rejected.
func dialects(def string) func(*instance.Instance) string {
	return func(in *instance.Instance) string {
		d, err := connector.OfRecord(&in.Record, def)
		if err != nil {
			return ""
		}
		return d.Name()
	}
}

// builds resolves what an instance must have in common with its partner, nil where
// that is not looked at.
func builds(cfg *config.Proxy) func(*instance.Instance) string {
	if !cfg.VersionGroups {
		return nil
	}
	resolve := dialects(cfg.Connector)
	return func(in *instance.Instance) string {
		d, err := connector.New(resolve(in))
		if err != nil {
			return ""
		}
		return d.Terms(in).Build
	}
}
