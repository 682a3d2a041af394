package proxy

import (
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/engine/catalog"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/admin"
	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
	"github.com/pdmesh/pdmesh/internal/observe/dashboard"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/proxy/etcd"
	"github.com/pdmesh/pdmesh/internal/proxy/loads"
	"github.com/pdmesh/pdmesh/internal/proxy/memory"
	"github.com/pdmesh/pdmesh/internal/proxy/ratio"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/proxy/static"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// app is a proxy with all its parts.
type app struct {
	cfg      *config.Proxy
	log      *logrus.Logger
	id       string
	layout   schema.Layout
	etcd     *etcd.Handle
	store    *store.Store
	watcher  *watch.Watcher
	presence *lease.Presence
	load     *loads.Loads
	kv       *kvfollow.Follower // nil: off
	tracker  *health.Tracker
	routes   *modelroute.Routes
	sched    *sched.Scheduler
	queues   *admission.Queues // nil: off
	ratio    *ratio.Follower
	models   *catalog.Catalog
	upstream upstream.Client
	tracer   *tracing.Tracer      // nil: off
	registry *prometheus.Registry // all metrics except those in counted
	counted  *prometheus.Registry // metrics of requests: fast to read, even with thousands of instances
	counters *metrics.Metrics
	limits   *keylimit.Table
	secure   *secure.Certificates
	keys     *apikeys.Ring // nil: clients need no key
	admins   *apikeys.Ring // admin keys; nil: none
	flags    *static.Instances
	noticed  *notice.Counts
	access   *forward.AccessLog // nil: off
	board    *dashboard.Board   // nil: off
	stopping atomic.Bool
	level    *logging.Level
	recent   func() []byte // returns the last lines of the log
	started  chan struct{} // closed by awaitFirstAnswers
	serving  atomic.Bool   // true once a request has seen started closed

	handler             *forward.Handler
	router, adminRouter http.Handler
}

// builder is an app under construction, with the values that the steps of build share.
type builder struct {
	*app
	// listen is the address of the listener for clients, address the one at which others reach it, and
	// adminURL the base URL of the operator routes.
	listen, address, adminURL string

	lmcache *lmcacheNotices
	guard   netguard.Policy
	prober  engines.Prober
	memory  *indexmem.Budget // shared by the policies and index
	index   *kvindex.Index   // nil: no KV events are followed

	estimator *estimate.Estimator
}

// build wires the parts. Each step uses the results of the steps before it. Nothing runs
// before startBackground.
func build(cfg *config.Proxy, log *logrus.Logger, own *etcd.Handle, certificates *secure.Certificates, listen, address, adminURL string, notices *lmcacheNotices) (*app, error) {
	layout, _ := schema.NewLayout(cfg.EtcdPrefix) // config has validated it
	guard := netguard.New(cfg.InstanceAllow)
	b := &builder{
		app:    &app{cfg: cfg, log: log, secure: certificates, etcd: own, id: ulid.Make().String(), layout: layout, access: newAccessLog(cfg, log), level: logging.NewLevel(log), recent: logging.KeepRecent(log), started: make(chan struct{}), limits: new(keylimit.Table)},
		listen: listen, address: address, adminURL: adminURL, lmcache: notices, guard: guard, prober: engines.NewProber(cfg, guard, certificates),
	}
	b.makeMembership()
	b.makeLoad()
	b.makeHealth()
	b.makeScheduler()
	for _, step := range []func() error{b.openConnections, b.makeForwarder} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	b.kv = newKVEvents(b.cfg, b.index, b.watcher.Snapshot, b.prober, b.guard)
	b.registerMetrics()
	b.makeRoutes()
	return b.app, nil
}

// makeMembership makes the store, the instances of the command line and the watcher.
func (b *builder) makeMembership() {
	actor := "proxy " + b.id
	b.store = store.New(b.etcd.Client, b.layout, actor)
	b.flags = static.New(b.cfg, static.Name(b.cfg, b.listen), func() *instance.Snapshot { return b.watcher.Snapshot() })
	b.watcher = watch.New(b.etcd.Client, watch.Options{
		Layout: b.layout, Prober: b.prober, Model: b.cfg.Model, Proxy: b.flags.Proxy, Writer: b.store.Watch,
		Log:             b.log.WithField("component", "watcher"),
		WaitingInterval: b.cfg.WaitingRetryInterval, AuditInterval: b.cfg.AuditInterval,
		ProbeTimeout: b.cfg.ProbeTimeout,
		OrphanGrace:  b.cfg.OrphanGrace, StateDir: b.cfg.StateDir, Check: engines.Usable(b.cfg.Connector), Learns: engines.Learns(b.cfg.Connector),
		Prepare: func(s *instance.Snapshot) { b.sched.Prepare(s) },
		Local:   b.flags.Records,
	})
	b.noticed = notice.NewCounts(b.watcher.Snapshot)
}

// makeLoad makes the load of instances (in-flight requests of this proxy, digests of other proxies,
// metrics of engines), and the presence, which publishes it.
func (b *builder) makeLoad() {
	var others *loaddigest.Watcher
	if b.cfg.LoadDigests {
		others = loaddigest.NewWatcher(b.etcd.Client, b.layout, b.log.WithField("component", "load"))
	}
	b.load = &loads.Loads{
		ID: b.id, Watcher: b.watcher, Others: others, Prober: b.prober, ScrapeInterval: b.cfg.ScrapeInterval,
		Placements: new(prefix.Placements), Keys: b.limits, Log: b.log.WithField("component", "load"),
		Changed: func() { b.queues.Wake() }, Queue: b.publishedQueue, OnDigests: b.followQueues,
	}
	b.presence = lease.NewPresence(b.etcd.Client, lease.PresenceOptions{
		Layout: b.layout, ID: b.id, Address: b.address, AdminURL: b.adminURL, Version: version.String(), Log: b.log.WithField("component", "presence"),
		Applied: func() int64 { return b.watcher.Status().Applied }, Connector: b.cfg.Connector,
		Report: b.report, Load: b.load.Source(), LoadInterval: b.cfg.LoadInterval,
	})
}

// makeHealth makes the outlier tracker.
func (b *builder) makeHealth() {
	b.tracker = health.New(health.Options{
		Source: b.watcher, Prober: b.prober, Log: b.log.WithField("component", "health"),
		MaxFailures: b.cfg.MaxFailures, Ejection: b.cfg.EjectionTime, SlowStart: b.cfg.SlowStart,
		SilenceLimit: b.cfg.SilenceLimit, ProbeTimeout: b.cfg.ProbeTimeout, PrefillOptional: b.cfg.Fallback == config.FallbackDecode,
		Received: func(k instance.Key) uint64 { return b.sched.Loads.Progress(k) },
		OnEject:  func(k instance.Key, dead bool, why string) { b.sched.Legs.Abandon(k, dead, why) },
		Read:     b.load.Read, Trial: b.prober.Trial, Suspended: b.prober.Suspended, WaitingTokens: b.load.WaitingTokens,
		OnTrial: func(result string) { b.counters.Trial(result) },
	})
}

// makeScheduler makes the scheduler and the catalog of models.
func (b *builder) makeScheduler() {
	b.memory = indexmem.New(b.cfg.IndexMemory)
	b.index = newKVIndex(b.cfg, b.memory)
	b.sched = sched.New(sched.Options{
		Source: b.watcher, Health: &b.tracker.Records, PairKey: engines.PairKeys(b.cfg), Silent: b.tracker.Suspect,
		PrefillOptional: b.cfg.Fallback == config.FallbackDecode,
		Policies:        policies(b.cfg), NoBinding: !b.cfg.ClientBound, Zone: b.cfg.Zone,
		Options: policy.Options{
			Start: rand.Uint64(), CacheWeight: float64(b.cfg.CacheWeight), Caches: b.index, Placements: b.load.Placements, Budget: b.memory,
		},
	})
	b.load.Use(b.sched, b.tracker)
	b.models = catalog.New(catalog.Options{
		Members: b.watcher.Snapshot, Read: b.prober.Models, Observe: b.watcher.ObserveModels, Serves: b.sched.Serves, Available: b.tracker.Available,
		Timeout: b.cfg.ProbeTimeout,
	})
}

// openConnections makes the client for engines, reads the API keys of clients, and connects to the
// trace collector.
func (b *builder) openConnections() error {
	var err error
	b.upstream = upstream.New(b.cfg.Upstream, upstream.Options{ConnectTimeout: b.cfg.ConnectTimeout, Guard: b.guard, TLS: b.secure.Engines.Client})
	if b.keys, b.admins, err = openKeys(b.cfg, b.log); err != nil {
		return err
	}
	b.tracer, err = openTracer(b.cfg, b.id, b.log)
	return err
}

// makeForwarder makes the handler that forwards requests to engines, and its counters.
func (b *builder) makeForwarder() error {
	b.registry, b.counted = prometheus.NewRegistry(), prometheus.NewRegistry()
	b.counters = metrics.New(b.counted, version.String(), b.cfg.MetricsModels)
	b.makeQueue()
	b.makeRatio()
	b.routes = modelroute.New(b.watcher, decodeModelRoutes(b.log.WithField("component", "forward")))
	options := forward.Options{
		Config: flow.Config{
			Picker: b.sched, AwaitMembership: b.awaitMembership, ReceivedFrom: b.watcher.ReceivedFrom, Health: b.tracker, Models: b.models, Log: b.log.WithField("component", "forward"),
			Notifications: b.lmcache.waiter, Notified: b.cfg.LMCacheNotifyTimeout, Queue: b.queues, Estimator: b.estimator,
			Fallback: b.cfg.Fallback == config.FallbackDecode, Disaggregate: disaggregate(b.cfg), MaxAttempts: b.cfg.MaxAttempts, ContinueStreams: b.cfg.ContinueStreams,
			Prefill: b.cfg.PrefillTimeout, FirstByte: b.cfg.DecodeFirstByteTimeout, Idle: b.cfg.IdleTimeout, NonStream: b.cfg.NonStreamTimeout,
			KVBudget: b.cfg.KVLeaseBudget, RewriteHost: b.cfg.RewriteRemoteHost,
		},
		Settings: leg.Settings{
			Upstream: b.upstream, Progress: b.tracker.Progress, Busy: b.cfg.BusyTimeout, Connect: b.cfg.ConnectTimeout, EngineKey: b.cfg.EngineAPIKey,
		},
		Routes:    b.routes,
		EventGaps: b.counters.Between, Tracer: b.tracer, Recorder: recorder{b.counters, b.app},
		Keys: b.limits, TraceAll: b.cfg.TraceHeaders, Sessions: sessions(b.cfg),
		// A retry budget of 0 % becomes a tiny ratio, because 0 means the handler's default.
		MaxBody: b.cfg.MaxBodyBytes, MaxBodies: memory.Bodies(b.cfg), RetryRatio: max(float64(b.cfg.RetryBudget)/100, 1e-9), KeepAlive: b.cfg.SSEKeepAliveInterval,
	}
	allow(b.keys, b.admins, &options)
	var err error
	b.handler, err = forward.New(options)
	return err
}

// registerMetrics registers the metrics of all parts.
func (b *builder) registerMetrics() {
	metrics.Membership{
		Snapshot: b.watcher.Snapshot, InFlight: b.sched.Loads.Each, Picks: b.sched.Tally.Picks.Each, Picked: b.sched.Loads.Picks, Both: b.sched.Tally.Both.Each, Elsewhere: b.sched.Tally.Elsewhere.Each, View: b.tracker.View,
		Etcd: func() metrics.Etcd { return b.etcd.Metrics(b.watcher.Status()) }, Ready: b.readiness,
	}.Register(b.registry)
	metrics.Hits(b.sched.Loads.Hits).Register(b.counted)
	metrics.Load{Each: b.sched.Loads.Totals, EachRank: b.load.EachRank, Remembered: b.load.Remembered, Digests: b.load.Metrics, Memory: b.memory}.Register(b.registry)
	b.secure.Metrics().Register(b.registry)
	metrics.APIKeys{Ring: b.keys, Admins: b.admins, Use: b.limits}.Register(b.registry)
	metrics.Bodies(b.handler.BodyMemory).Register(b.registry)
	metrics.ModelRoutes(b.listModelRoutes).Register(b.registry)
	metrics.Traces(b.tracer.Dropped).Register(b.registry)
	if b.kv != nil {
		metrics.KVEvents{Status: b.kv.Status, Queue: b.kv.Queue}.Register(b.registry)
	}
}

// makeRoutes makes the routers of all listeners.
func (b *builder) makeRoutes() {
	deps := httpapi.Deps{
		Data: b.dataRoutes(), Admin: b.adminRoutes(),
		Members: b.watcher, InFlight: b.sched.InFlight, Details: b.load.Of, Opinion: b.opinion, NotServing: b.notServing, Connector: b.cfg.Connector,
		Prompts: b.load.Prompts, Digests: b.load.Digests, KVEvents: b.kvStatus, Queues: b.queues.Status, Roles: b.ratio.Advice, Etcd: func() httpapi.EtcdStatus { return b.etcd.Status(b.watcher.Status()) },
		Ready: b.ready, Metrics: promhttp.HandlerFor(b.gatherers(), promhttp.HandlerOpts{}), Log: b.log.WithField("component", "http"), LogLevel: b.level,
		CORS:       cors(b.cfg),
		ClientKeys: b.keys, Config: b.cfg.Print, RecentLog: b.recent, AdminKey: b.admins, Version: version.String(), ID: b.id,
		Limits: limits(b.cfg), Notices: b.notices, Usage: b.limits.Usage, ModelRoutes: b.listModelRoutes,
	}
	if b.board = b.newBoard(deps.List, deps.Etcd, b.address); b.board != nil {
		deps.Dashboard = b.board
	}
	b.router = httpapi.NewRouter(deps, b.cfg.AdminListen != "")
	b.adminRouter = httpapi.NewAdminRouter(deps)
}

// dataRoutes returns the handlers of the routes that engines answer.
func (b *builder) dataRoutes() httpapi.DataHandlers {
	h := b.handler
	return httpapi.DataHandlers{
		Generate: h.Completion, Passthrough: h.Passthrough, Form: h.Form, PassthroughGet: h.PassthroughGet, Stored: h.Stored,
		FanOut: h.FanOut, Models: h.Models, Explain: h.Explain, Requests: h.Requests,
	}
}

// adminRoutes returns the handlers of the routes that change the membership.
func (b *builder) adminRoutes() *admin.Service {
	return &admin.Service{
		Store: b.store, Members: b.watcher, Prober: b.prober, Guard: b.guard, Model: b.cfg.Model, Proxies: b.flags.Fleet,
		Fits:       engines.Usable(b.cfg.Connector),
		PendingTTL: time.Duration(b.cfg.MaxWaitingRetries) * b.cfg.WaitingRetryInterval,
	}
}

// cors returns the CORS settings of the client routes.
func cors(cfg *config.Proxy) httpapi.CORS {
	return httpapi.CORS{Origins: cfg.AllowedOrigins, Methods: cfg.AllowedMethods, Headers: cfg.AllowedHeaders, Credentials: cfg.AllowCredentials}
}

// limits returns the settings that decide what happens to a request, for /status.
func limits(cfg *config.Proxy) map[string]any {
	return map[string]any{
		"max_attempts": cfg.MaxAttempts, "max_failures": cfg.MaxFailures, "retry_budget_percent": cfg.RetryBudget,
		"max_waiting_retries": cfg.MaxWaitingRetries, "waiting_retry_interval": cfg.WaitingRetryInterval.String(),
		"ejection_time": cfg.EjectionTime.String(), "slow_start": cfg.SlowStart.String(),
		"silence_limit": cfg.SilenceLimit.String(), "probe_timeout": cfg.ProbeTimeout.String(), "fallback": cfg.Fallback,
		"connect_timeout": cfg.ConnectTimeout.String(), "prefill_timeout": cfg.PrefillTimeout.String(),
		"decode_first_byte_timeout": cfg.DecodeFirstByteTimeout.String(), "non_stream_timeout": cfg.NonStreamTimeout.String(),
		"max_body_bytes": cfg.MaxBodyBytes, "max_bodies_memory": memory.Bodies(cfg),
		"idle_timeout": cfg.IdleTimeout.String(), "busy_timeout": cfg.BusyTimeout.String(), "kv_lease_budget": cfg.KVLeaseBudget.String(),
		"max_connections": maxConnections(cfg), "load_digests": cfg.LoadDigests, "scrape_interval": cfg.ScrapeInterval.String(),
		"prefill_policy": cfg.PrefillPolicy, "decode_policy": cfg.DecodePolicy, "client_bound": cfg.ClientBound, "zone": cfg.Zone,
	}
}

// policies returns the policy of each role.
func policies(cfg *config.Proxy) map[instance.Role]policy.Kind {
	prefill, _ := policy.Find(cfg.PrefillPolicy) // config has validated both
	decode, _ := policy.Find(cfg.DecodePolicy)
	return map[instance.Role]policy.Kind{instance.Prefill: prefill, instance.Decode: decode}
}

// sessions returns how requests name their session; the zero value if no policy uses sessions.
func sessions(cfg *config.Proxy) forward.Sessions {
	if !cfg.ClientBound && !policy.UsesSession(cfg.PrefillPolicy) && !policy.UsesSession(cfg.DecodePolicy) {
		return forward.Sessions{}
	}
	return forward.Sessions{Header: cfg.ClientBoundKey, Known: cfg.ClientBoundKey == ""}
}

// disaggregate returns the rule for which requests get a prefill leg; nil if all of them do.
func disaggregate(cfg *config.Proxy) *flow.Disaggregate {
	if cfg.Disaggregate == config.DisaggregateAlways {
		return nil
	}
	return &flow.Disaggregate{Never: cfg.Disaggregate == config.DisaggregateNever}
}
