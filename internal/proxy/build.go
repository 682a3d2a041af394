package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/accesslog"
	"github.com/pdmesh/pdmesh/internal/admin"
	"github.com/pdmesh/pdmesh/internal/apikeys"
	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/dashboard"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvfollow"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/metrics"
	"github.com/pdmesh/pdmesh/internal/netguard"
	"github.com/pdmesh/pdmesh/internal/notice"
	"github.com/pdmesh/pdmesh/internal/prefix"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/proxy/etcd"
	"github.com/pdmesh/pdmesh/internal/proxy/loads"
	"github.com/pdmesh/pdmesh/internal/proxy/memory"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/proxy/static"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/tracing"
	"github.com/pdmesh/pdmesh/internal/upstream"
	"github.com/pdmesh/pdmesh/internal/version"
)

// app is the wired program.
type app struct {
	cfg      *config.Proxy
	log      *logrus.Logger
	id       string
	store    *store.Store
	watcher  *watch.Watcher
	presence *lease.Presence
	load     *loads.Loads
	kv       *kvfollow.Follower // nil: off
	tracker  *health.Tracker
	sched    *sched.Scheduler
	upstream upstream.Client
	tracer   *tracing.Tracer // nil: off
	registry *prometheus.Registry
	secure   *secure.Certificates
	keys     *apikeys.Ring // nil: clients need none
	flags    *static.Instances
	noticed  *notice.Counts
	access   *accesslog.Log   // nil: off
	board    *dashboard.Board // nil: off
	stopping atomic.Bool
	level    *logging.Level
	begun    chan struct{} // closed when requests need not wait for the start any more

	router, adminRouter http.Handler
	direct              map[string]http.HandlerFunc // routes that need no router
}

func build(cfg *config.Proxy, log *logrus.Logger, own *etcd.Handle, certificates *secure.Certificates, address string, heard *notices) (*app, error) {
	layout, err := schema.NewLayout(cfg.EtcdPrefix)
	if err != nil {
		return nil, err
	}
	p := &app{cfg: cfg, log: log, secure: certificates, id: ulid.Make().String(), access: newAccessLog(cfg, log), begun: make(chan struct{})}
	p.level = logging.NewLevel(log)
	guard := netguard.New(cfg.InstanceAllow)
	prober := engines.NewProber(cfg, guard, certificates)
	actor := "proxy " + p.id
	p.store = store.New(own.Client, layout, actor)
	p.watcher = watch.New(own.Client, watch.Options{
		Layout: layout, Prober: prober, Model: cfg.Model, Proxy: static.Name(cfg, address), Writer: p.store.Watch,
		Log:             log.WithField("component", "watcher"),
		WaitingInterval: cfg.WaitingRetryInterval, AuditInterval: cfg.AuditInterval,
		ProbeTimeout: cfg.ProbeTimeout,
		OrphanGrace:  cfg.OrphanGrace, StateDir: cfg.StateDir, Check: engines.Usable(cfg.Connector), Learns: engines.Learns(cfg.Connector),
		Prepare: func(s *instance.Snapshot) { p.sched.Prepare(s) },
	})
	p.noticed = notice.NewCounts(p.watcher.Snapshot)
	var others *lease.Loads
	if cfg.LoadDigests {
		others = lease.NewLoads(own.Client, layout, log.WithField("component", "load"))
	}
	p.load = &loads.Loads{
		ID: p.id, Watcher: p.watcher, Others: others, Prober: prober, ScrapeInterval: cfg.ScrapeInterval,
		Placements: new(prefix.Placements), Log: log.WithField("component", "load"),
	}
	p.presence = newPresence(own.Client, layout, p, address)
	p.tracker = health.New(health.Options{
		Source: p.watcher, Prober: prober, Log: log.WithField("component", "health"),
		MaxFailures: cfg.MaxFailures, Ejection: cfg.EjectionTime, SlowStart: cfg.SlowStart,
		SilenceLimit: cfg.SilenceLimit, ProbeTimeout: cfg.ProbeTimeout, PrefillOptional: cfg.Fallback == config.FallbackDecode,
		Heard:   func(k instance.Key) uint64 { return p.sched.Loads.Heard(k) },
		OnEject: func(k instance.Key, dead bool, why string) { p.sched.Legs.Abandon(k, dead, why) },
	})
	kinds, err := policies(cfg)
	if err != nil {
		return nil, err
	}
	index := newKVIndex(cfg)
	p.sched = sched.New(sched.Options{
		Source: p.watcher, Health: p.tracker, Connector: engines.Dialects(cfg.Connector), Build: engines.Builds(cfg), Blocks: engines.Blocks(cfg.Connector), Silent: p.tracker.Suspect,
		PrefillOptional: cfg.Fallback == config.FallbackDecode,
		Policies:        kinds, NoBinding: !cfg.ClientBound, Zone: cfg.Zone, Start: rand.Uint64(), CacheWeight: float64(cfg.CacheWeight), Caches: caches(index),
		Placements: p.load.Placements,
	})
	p.load.Scheduler = p.sched
	p.upstream, err = upstream.New(cfg.Upstream, upstream.Options{ConnectTimeout: cfg.ConnectTimeout, Guard: guard, TLS: certificates.Engines.Client})
	if err != nil {
		return nil, err
	}
	if p.keys, err = openKeys(cfg, log); err != nil {
		return nil, err
	}
	if p.tracer, err = openTracer(cfg, p.id, log); err != nil {
		return nil, err
	}
	p.flags = static.New(cfg, static.Name(cfg, address), p.watcher)

	reg := prometheus.NewRegistry()
	p.registry = reg
	counters := metrics.New(reg, version.String())
	metrics.Membership{
		Snapshot: p.watcher.Snapshot, InFlight: p.sched.Loads.Each, Picks: p.sched.Tally.Picks, Both: p.sched.Tally.Both, Elsewhere: p.sched.Tally.Elsewhere, Hits: p.sched.Loads.Hits, Available: p.tracker.Available,
		Etcd: func() metrics.Etcd { return own.Metrics(p.watcher.Status()) },
	}.Register(reg)
	options := forward.Options{
		Notices: heard.asker, Notified: cfg.LMCacheNotifyTimeout,
		Picker: freshPicker{p.sched, p.watcher, p.begun, new(atomic.Bool)}, Health: p.tracker, Upstream: p.upstream, Log: log.WithField("component", "forward"),
		Between: counters.Between, Tracer: p.tracer, Recorder: recorder{Metrics: counters, noticed: p.noticed, access: p.access, board: func() *dashboard.Board { return p.board }},
		EngineKey: cfg.EngineAPIKey, TraceAll: cfg.TraceHeaders,
		Fallback: cfg.Fallback == config.FallbackDecode, SessionHeader: sessionHeader(cfg), Disaggregate: disaggregate(cfg),
		MaxBody: cfg.MaxBodyBytes, MaxBodies: memory.Bodies(cfg), MaxAttempts: cfg.MaxAttempts,
		RetryRatio: retryRatio(cfg.RetryBudget),
		Prefill:    cfg.PrefillTimeout, FirstByte: cfg.DecodeFirstByteTimeout,
		Idle: cfg.IdleTimeout, KVBudget: cfg.KVLeaseBudget, RewriteHost: cfg.RewriteRemoteHost, NonStream: cfg.NonStreamTimeout,
	}
	allow(p.keys, cfg.AdminAPIKey, &options)
	h, err := forward.New(options)
	if err != nil {
		return nil, err
	}
	metrics.Load{Each: p.sched.Loads.Totals, EachRank: p.load.EachRank, Remembered: p.load.Remembered, Digests: p.load.Metrics}.Register(reg)
	certificates.Metrics().Register(reg)
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
			Instances: p.store.Instances, Intents: p.store.Intents, Members: p.watcher, Prober: prober, Guard: guard, Model: cfg.Model, Proxies: p.flags.Fleet,
			PendingTTL: time.Duration(cfg.MaxWaitingRetries) * cfg.WaitingRetryInterval,
		}),
		Members: p.watcher, Load: p.sched, Details: p.load.Of, Prompts: p.load.Prompts, Digests: p.load.Digests, KVEvents: p.kvStatus, Opinion: opinion{p.tracker}, Etcd: func() httpapi.EtcdStatus { return own.Status(p.watcher.Status()) },
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
		"max_body_bytes": cfg.MaxBodyBytes, "max_bodies_memory": memory.Bodies(cfg),
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
