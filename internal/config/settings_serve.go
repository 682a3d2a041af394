package config

import (
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// requestSettings are about times, limits and tries of requests.
func (p *Proxy) requestSettings() settings.Table {
	return settings.About("Requests",
		settings.Setting{Name: "server", Kind: settings.Text, Default: ServerOwn, Usage: "HTTP server for completions: own (faster; leaves uncommon requests to std) or std (Go's net/http)", Into: &p.Server},
		settings.Setting{Name: "upstream", Kind: settings.Text, Default: UpstreamOwn, Usage: "HTTP client for the instances: own (faster; https uses std) or std (Go's net/http)", Into: &p.Upstream},
		settings.Setting{Name: "connect-timeout", Kind: settings.Time, Default: "1s", Usage: "time limit for connecting to an instance, with up to three tries", Into: &p.ConnectTimeout},
		settings.Setting{Name: "prefill-timeout", Kind: settings.Time, Default: "5m", Usage: "time limit for the whole answer of prefill", Into: &p.PrefillTimeout},
		settings.Setting{Name: "decode-first-byte-timeout", Kind: settings.Time, Default: "1m", Usage: "time limit for the first byte of a decode answer", Into: &p.DecodeFirstByteTimeout},
		settings.Setting{Name: "idle-timeout", Kind: settings.Time, Default: "2m", Usage: "longest pause between two chunks of an answer", Into: &p.IdleTimeout},
		settings.Setting{Name: "non-stream-timeout", Kind: settings.Time, Default: "1h", Usage: "time limit for the first byte of an answer that is not streamed; engines send it when it is complete", Into: &p.NonStreamTimeout},
		settings.Setting{Name: "max-attempts", Kind: settings.Number, Default: "4", Usage: "attempts for one request, including the first, on different instances", Into: &p.MaxAttempts},
		settings.Setting{Name: "retry-budget", Kind: settings.Number, Default: "20", Usage: "limit for retries, in percent of the requests of the last 10s, plus a burst of 64", Into: &p.RetryBudget},
		settings.Setting{Name: "fallback", Kind: settings.Text, Default: FallbackDecode, Usage: "without a usable prefill instance: decode (decode instances serve alone) or none (503)", Into: &p.Fallback},
		settings.Setting{Name: "max-body-bytes", Kind: settings.Bytes, Default: "32MiB", Usage: "largest request body; larger ones get 413", Into: &p.MaxBodyBytes},
		settings.Setting{Name: "max-bodies-memory", Kind: settings.Bytes, Default: "0", Usage: "limit for all request bodies together; beyond it requests get 503, except a single one and those under 4KiB; 0 means half of the memory limit (GOMEMLIMIT or the container's), or a quarter of the machine's memory", Into: &p.MaxBodiesMemory},
		settings.Setting{Name: "max-connections", Kind: settings.Number, Default: "0", Usage: "limit for open connections of clients; at the limit idle connections are closed, and new ones wait while all are busy; 0 means nearly half of the limit on file descriptors", Into: &p.MaxConnections},
		settings.Setting{Name: "shutdown-timeout", Kind: settings.Time, Default: "30s", Usage: "how long running requests may take after SIGTERM", Into: &p.ShutdownTimeout},
	)
}

// handOverSettings are about how KV caches are handed over.
func (p *Proxy) handOverSettings() settings.Table {
	return settings.About("Hand-over",
		settings.Setting{Name: "kv-lease-budget", Kind: settings.Time, Default: "20s", Usage: "how long after a prefill its KV cache may be handed over", Into: &p.KVLeaseBudget},
		settings.Setting{Name: "version-groups", Kind: settings.OnOff, Default: "on", Usage: "pair only NIXL engines of the same vLLM version, because others refuse each other's KV cache; turn off for engines with enforce_handshake_compat false", Into: &p.VersionGroups},
		settings.Setting{Name: "rewrite-remote-host", Kind: settings.OnOff, Default: "off", Usage: "give decode the host by which the proxy reaches prefill, instead of the host in the answer of prefill", Into: &p.RewriteRemoteHost},
		settings.Setting{Name: "lmcache-notify", Kind: settings.Text, Usage: "tcp://host:port where this proxy receives notifications of LMCache's prefill instances, as in their pd_proxy_host and pd_proxy_port; for a single proxy, and prefill instances whose agents do not receive them", Into: &p.LMCacheNotify},
		settings.Setting{Name: "lmcache-notify-timeout", Kind: settings.Time, Default: "30s", Usage: "how long to wait, after the answer of prefill, for LMCache's notifications of all ranks; then another pair is tried", Into: &p.LMCacheNotifyTimeout},
	)
}

// healthSettings are about when an instance is left alone.
func (p *Proxy) healthSettings() settings.Table {
	return settings.About("Health of instances",
		settings.Setting{Name: "max-failures", Kind: settings.Number, Default: "3", Usage: "number of failures in a row that eject an instance; only requests count that another instance then served", Into: &p.MaxFailures},
		settings.Setting{Name: "ejection-time", Kind: settings.Time, Default: "1s", Usage: "length of the first such ejection; it doubles up to 30s, and ends with a successful probe", Into: &p.EjectionTime},
		settings.Setting{Name: "slow-start", Kind: settings.Time, Default: "10s", Usage: "time until an instance that returned gets its full share of requests", Into: &p.SlowStart},
		settings.Setting{Name: "silence-limit", Kind: settings.Time, Default: "1.25s", Usage: "how long an instance with waiting requests may send nothing, while others of its role do, before it is avoided; grows up to 10s if engines answer slowly", Into: &p.SilenceLimit},
		settings.Setting{Name: "probe-timeout", Kind: settings.Time, Default: "5s", Usage: "time limit of one probe of an instance", Into: &p.ProbeTimeout},
	)
}

// choiceSettings are about which instance gets a request.
func (p *Proxy) choiceSettings() settings.Table {
	return settings.About("Choice of an instance",
		settings.Setting{Name: "disaggregate", Kind: settings.Text, Default: DisaggregateAlways, Usage: "which requests use both prefill and decode: always (all that can), auto (not those that decode alone serves better, as estimated from earlier requests) or never (for comparison)", Into: &p.Disaggregate},
		settings.Setting{Name: "policy", Kind: settings.Text, Usage: "how an instance is chosen, for both roles: " + strings.Join(policy.Names(), ", "), Into: &p.Policy},
		settings.Setting{Name: "prefill-policy", Kind: settings.Text, Usage: "policy for prefill instances (default: that of --policy, or " + policy.DefaultPrefill + ")", Into: &p.PrefillPolicy},
		settings.Setting{Name: "decode-policy", Kind: settings.Text, Usage: "policy for decode instances (default: that of --policy, or " + policy.Default + ")", Into: &p.DecodePolicy},
		settings.Setting{Name: "cache-weight", Kind: settings.Number, Default: strconv.Itoa(policy.DefaultCacheWeight), Usage: "for policies that know caches: this many tokens that wait for an instance count as much as one token that is not in its cache", Into: &p.CacheWeight},
		settings.Setting{Name: "client-bound", Kind: settings.OnOff, Default: "off", Env: []string{"CLIENT_BOUND"}, Usage: "send requests of one session to the same instances, with any policy; also CLIENT_BOUND", Into: &p.ClientBound},
		settings.Setting{Name: "client-bound-key", Kind: settings.Text, Default: "session-id", Env: []string{"CLIENT_BOUND_KEY"}, Usage: "header that names the session, for --client-bound and the policy session; also CLIENT_BOUND_KEY", Into: &p.ClientBoundKey},
		settings.Setting{Name: "zone", Kind: settings.Text, Usage: "zone of this proxy, which prefers instances with the same label zone; without it, decode instances in the zone of the prefill instance are preferred", Into: &p.Zone},
		settings.Setting{Name: "kv-events", Kind: settings.OnOff, Default: "off", Usage: "follow the KV events that engines publish (--kv-events-config); the policy " + policy.KVAware + " always does", Into: &p.KVEvents},
		settings.Setting{Name: "load-digests", Kind: settings.OnOff, Default: "on", Usage: "publish the load of this proxy in etcd for the other proxies, and use their load", Into: &p.LoadDigests},
		settings.Setting{Name: "load-interval", Kind: settings.Time, Default: "1s", Usage: "shortest time between two such digests of one proxy; each is a write to etcd", Into: &p.LoadInterval},
		settings.Setting{Name: "scrape-interval", Kind: settings.Time, Default: "5s", Usage: "how often the metrics of each engine are read, for KV cache use and waiting requests; 0s means never", Into: &p.ScrapeInterval},
	)
}

// recordSettings are about what is written down.
func (p *Proxy) recordSettings() settings.Table {
	return settings.About("Logs and traces",
		settings.Setting{Name: "access-log", Kind: settings.OnOff, Default: "on", Usage: "log one line for each request", Into: &p.AccessLog},
		settings.Setting{Name: "trace-headers", Kind: settings.OnOff, Default: "off", Usage: "add X-PD-... headers with the instances to every answer", Into: &p.TraceHeaders},
		settings.Setting{Name: "otlp-endpoint", Kind: settings.Text, Usage: "URL of an OTLP collector for traces, such as http://127.0.0.1:4318; also OTEL_EXPORTER_OTLP_ENDPOINT and other OTEL_ variables; without it there are no traces", Into: &p.OTLPEndpoint},
		settings.Setting{Name: "trace-sample", Kind: settings.Text, Usage: "share of requests that are traced, from 0 to 1; for a request with a traceparent, its flag decides (default 0.01, or OTEL_TRACES_SAMPLER)", Into: &p.TraceSample},
		settings.Setting{Name: "log-level", Kind: settings.Text, Default: "info", Usage: "error, warn, info, debug or trace", Into: &p.LogLevel},
		settings.Setting{Name: "log-format", Kind: settings.Text, Default: "text", Usage: "text or json", Into: &p.LogFormat},
	)
}
