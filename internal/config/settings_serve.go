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
		settings.Setting{Name: "server", Kind: settings.Text, Default: ServerOwn, Usage: "HTTP server for completions: own (lean; hands everything unusual to std) or std (the standard library's)", Into: &p.Server},
		settings.Setting{Name: "upstream", Kind: settings.Text, Default: UpstreamOwn, Usage: "HTTP client for the instances: own (lean, plain http only; https goes to std) or std (the standard library's)", Into: &p.Upstream},
		settings.Setting{Name: "connect-timeout", Kind: settings.Time, Default: "1s", Usage: "to connect to an instance; it is asked up to three times in that time", Into: &p.ConnectTimeout},
		settings.Setting{Name: "prefill-timeout", Kind: settings.Time, Default: "5m", Usage: "for a whole prefill", Into: &p.PrefillTimeout},
		settings.Setting{Name: "decode-first-byte-timeout", Kind: settings.Time, Default: "1m", Usage: "until a decode instance begins to answer", Into: &p.DecodeFirstByteTimeout},
		settings.Setting{Name: "idle-timeout", Kind: settings.Time, Default: "2m", Usage: "between two chunks of an answer", Into: &p.IdleTimeout},
		settings.Setting{Name: "non-stream-timeout", Kind: settings.Time, Default: "1h", Usage: "until a decode instance begins a non-streamed answer, which it does when it is whole", Into: &p.NonStreamTimeout},
		settings.Setting{Name: "max-attempts", Kind: settings.Number, Default: "4", Usage: "tries for one request on different instances, the first included", Into: &p.MaxAttempts},
		settings.Setting{Name: "retry-budget", Kind: settings.Number, Default: "20", Usage: "retries allowed, in percent of the requests of the last 10s; a burst of 64 is free", Into: &p.RetryBudget},
		settings.Setting{Name: "fallback", Kind: settings.Text, Default: FallbackDecode, Usage: "when no prefill instance is left: decode (decode instances alone) or none (503)", Into: &p.Fallback},
		settings.Setting{Name: "max-body-bytes", Kind: settings.Bytes, Default: "32MiB", Usage: "largest request body taken; larger ones get 413", Into: &p.MaxBodyBytes},
		settings.Setting{Name: "max-bodies-memory", Kind: settings.Bytes, Default: "0", Usage: "memory for all request bodies together; beyond it requests get 503, but for a single one and for those under 4KiB. 0 takes half of the memory limit (GOMEMLIMIT or the container's), or a quarter of the machine's memory", Into: &p.MaxBodiesMemory},
		settings.Setting{Name: "max-connections", Kind: settings.Number, Default: "0", Usage: "clients connected at once; idle connections are closed for new ones, and the others wait; 0 means as many as the limit on descriptors leaves room for", Into: &p.MaxConnections},
		settings.Setting{Name: "shutdown-timeout", Kind: settings.Time, Default: "30s", Usage: "for running requests when the proxy is told to stop", Into: &p.ShutdownTimeout},
	)
}

// handOverSettings are about how KV caches are handed over.
func (p *Proxy) handOverSettings() settings.Table {
	return settings.About("Hand-over",
		settings.Setting{Name: "kv-lease-budget", Kind: settings.Time, Default: "20s", Usage: "how long after a prefill its KV cache may still be handed over", Into: &p.KVLeaseBudget},
		settings.Setting{Name: "version-groups", Kind: settings.OnOff, Default: "on", Usage: "pair NIXL engines of the same vLLM version only, as others refuse each other's KV cache; off for engines with enforce_handshake_compat false", Into: &p.VersionGroups},
		settings.Setting{Name: "rewrite-remote-host", Kind: settings.OnOff, Default: "off", Usage: "tell decode the address by which the proxy reached prefill, in place of the one that prefill says of itself", Into: &p.RewriteRemoteHost},
		settings.Setting{Name: "lmcache-notify", Kind: settings.Text, Usage: "tcp://host:port where this proxy takes the notifications of LMCache's prefill instances, whose pd_proxy_host and pd_proxy_port say the same; for a single proxy and prefill instances whose agents do not take them", Into: &p.LMCacheNotify},
		settings.Setting{Name: "lmcache-notify-timeout", Kind: settings.Time, Default: "30s", Usage: "after a prefill's answer, until every rank has notified that LMCache's chunks have arrived; then another pair is tried", Into: &p.LMCacheNotifyTimeout},
	)
}

// healthSettings are about when an instance is left alone.
func (p *Proxy) healthSettings() settings.Table {
	return settings.About("Health of instances",
		settings.Setting{Name: "max-failures", Kind: settings.Number, Default: "3", Usage: "failures in a row, on requests that another instance then served, until an instance is ejected", Into: &p.MaxFailures},
		settings.Setting{Name: "ejection-time", Kind: settings.Time, Default: "1s", Usage: "how long the first such ejection lasts; it doubles up to 30s, and ends with a probe", Into: &p.EjectionTime},
		settings.Setting{Name: "slow-start", Kind: settings.Time, Default: "10s", Usage: "until an instance that came back gets its full share", Into: &p.SlowStart},
		settings.Setting{Name: "silence-limit", Kind: settings.Time, Default: "1.25s", Usage: "how long an instance that keeps requests waiting may give no sign of life, while others of its role give one, before it is left; it grows up to 10s where engines answer slowly", Into: &p.SilenceLimit},
		settings.Setting{Name: "probe-timeout", Kind: settings.Time, Default: "5s", Usage: "limit of one probe of an instance", Into: &p.ProbeTimeout},
	)
}

// choiceSettings are about which instance gets a request.
func (p *Proxy) choiceSettings() settings.Table {
	return settings.About("Choice of an instance",
		settings.Setting{Name: "disaggregate", Kind: settings.Text, Default: DisaggregateAlways, Usage: "who goes through prefill and decode: always (all that can), auto (who is not better served by decode alone, as far as earlier requests tell) or never (for comparison)", Into: &p.Disaggregate},
		settings.Setting{Name: "policy", Kind: settings.Text, Usage: "which of several instances gets a request, of either role: " + strings.Join(policy.Names(), ", "), Into: &p.Policy},
		settings.Setting{Name: "prefill-policy", Kind: settings.Text, Usage: "the same for prefill instances (default that of --policy, or " + policy.DefaultPrefill + ")", Into: &p.PrefillPolicy},
		settings.Setting{Name: "decode-policy", Kind: settings.Text, Usage: "the same for decode instances (default that of --policy, or " + policy.Default + ")", Into: &p.DecodePolicy},
		settings.Setting{Name: "cache-weight", Kind: settings.Number, Default: strconv.Itoa(policy.DefaultCacheWeight), Usage: "how many tokens of prompts that wait for an instance weigh as much as one token in its cache, for policies that know caches", Into: &p.CacheWeight},
		settings.Setting{Name: "client-bound", Kind: settings.OnOff, Default: "off", Env: []string{"CLIENT_BOUND"}, Usage: "send requests of one session to the same instances, whatever the policy; env CLIENT_BOUND too", Into: &p.ClientBound},
		settings.Setting{Name: "client-bound-key", Kind: settings.Text, Default: "session-id", Env: []string{"CLIENT_BOUND_KEY"}, Usage: "header that names the session, for --client-bound and the policy session; env CLIENT_BOUND_KEY too", Into: &p.ClientBoundKey},
		settings.Setting{Name: "zone", Kind: settings.Text, Usage: "where this proxy is: instances whose label zone is the same are preferred; without one, decode instances in the zone of the prefill instance", Into: &p.Zone},
		settings.Setting{Name: "kv-events", Kind: settings.OnOff, Default: "off", Usage: "follow what engines publish of their KV caches (--kv-events-config); the policy " + policy.KVAware + " does so in any case", Into: &p.KVEvents},
		settings.Setting{Name: "load-digests", Kind: settings.OnOff, Default: "on", Usage: "tell the other proxies, in etcd, what this one has in flight, and count what they have", Into: &p.LoadDigests},
		settings.Setting{Name: "load-interval", Kind: settings.Time, Default: "1s", Usage: "the least time between two of these digests of one proxy; a shorter one is a write to etcd as much more often", Into: &p.LoadInterval},
		settings.Setting{Name: "scrape-interval", Kind: settings.Time, Default: "5s", Usage: "between two looks at the metrics of one engine, for its KV cache and waiting requests; 0s never looks", Into: &p.ScrapeInterval},
	)
}

// recordSettings are about what is written down.
func (p *Proxy) recordSettings() settings.Table {
	return settings.About("Logs and traces",
		settings.Setting{Name: "access-log", Kind: settings.OnOff, Default: "on", Usage: "one log line per request", Into: &p.AccessLog},
		settings.Setting{Name: "trace-headers", Kind: settings.OnOff, Default: "off", Usage: "tell every client in X-PD-... headers which instances served it", Into: &p.TraceHeaders},
		settings.Setting{Name: "otlp-endpoint", Kind: settings.Text, Usage: "URL of a collector that takes traces by OTLP, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_ENDPOINT and the other OTEL_ variables count too; without either none are made", Into: &p.OTLPEndpoint},
		settings.Setting{Name: "trace-sample", Kind: settings.Text, Usage: "share of the requests that are traced, from 0 to 1; a request whose client sent a traceparent is traced if that says so (default 0.01, or what OTEL_TRACES_SAMPLER says)", Into: &p.TraceSample},
		settings.Setting{Name: "log-level", Kind: settings.Text, Default: "info", Usage: "error, warn, info, debug or trace", Into: &p.LogLevel},
		settings.Setting{Name: "log-format", Kind: settings.Text, Default: "text", Usage: "text or json", Into: &p.LogFormat},
	)
}
