package config

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// kind is how a value is written; it is what --help shows after the flag.
type kind string

const (
	kindText     kind = "string"
	kindInt      kind = "number" // "int" would make viper convert it, silently
	kindBytes    kind = "size"
	kindDuration kind = "duration"
	kindSwitch   kind = "on|off"
	kindList     kind = "list"
	// kindJSON is a list as vLLM's options have it, ["a","b"], or with commas.
	kindJSON kind = "json list"
)

// setting describes one entry of a configuration under all its names.
type setting struct {
	name   string
	short  string
	kind   kind
	def    string
	usage  string
	env    []string // further environment variables, after PD_<NAME>
	secret bool
	// flagOnly settings are about the reading of the configuration itself.
	flagOnly bool
	// set and get join the setting to its field.
	field func(*Proxy) any
}

// proxySettings lists every setting of the proxy in the order of --help.
func proxySettings() []setting {
	return []setting{
		{name: "host", kind: kindText, def: "127.0.0.1", usage: "address to listen on", field: func(p *Proxy) any { return &p.Host }},
		{name: "port", kind: kindInt, def: "8000", usage: "port to listen on; 0 takes any free one", field: func(p *Proxy) any { return &p.Port }},
		{name: "model", short: "m", kind: kindText, usage: "model every instance must serve; empty takes any", field: func(p *Proxy) any { return &p.Model }},
		{name: "connector", kind: kindText, def: "plain", usage: "KV transfer of instances whose record names none: " + strings.Join(connector.Names(), ", ") + ", or the name of vLLM's class", field: func(p *Proxy) any { return &p.Connector }},
		{name: "prefill", short: "p", kind: kindList, usage: "prefill instances, host:port; several after one flag, by comma or by repeating it", field: func(p *Proxy) any { return &p.Prefill }},
		{name: "decode", short: "d", kind: kindList, usage: "decode instances, written as for --prefill", field: func(p *Proxy) any { return &p.Decode }},

		{name: "zmq-register", kind: kindText, usage: "tcp://host:port at which MoRI-IO engines register themselves (vLLM's examples use port 36367); each is registered in etcd for as long as it pings; empty takes none", field: func(p *Proxy) any { return &p.ZMQRegister }},

		{name: "etcd-endpoints", kind: kindList, usage: "host:port of the etcd to use, with https:// in front for TLS; without it the proxy runs its own", field: func(p *Proxy) any { return &p.EtcdEndpoints }},
		{name: "etcd-username", kind: kindText, usage: "user at etcd, as which pdctl auth init sets up pd-proxy", field: func(p *Proxy) any { return &p.EtcdUsername }},
		{name: "etcd-password", kind: kindText, secret: true, usage: "password of that user (better given as PD_ETCD_PASSWORD)", field: func(p *Proxy) any { return &p.EtcdPassword }},
		{name: "etcd-password-file", kind: kindText, usage: "file with that password in its first line", field: func(p *Proxy) any { return &p.EtcdPasswordFile }},
		{name: "etcd-ca", kind: kindText, usage: "PEM file of the authorities that have signed etcd's certificate; means TLS (default the system's)", field: func(p *Proxy) any { return &p.EtcdCA }},
		{name: "etcd-cert", kind: kindText, usage: "PEM file of the certificate that etcd is shown, with --etcd-key; read again when it changes, as all such files", field: func(p *Proxy) any { return &p.EtcdCert }},
		{name: "etcd-key", kind: kindText, usage: "PEM file of its key", field: func(p *Proxy) any { return &p.EtcdKey }},
		{name: "etcd-listen", kind: kindText, def: "127.0.0.1:2379", usage: "client address of the proxy's own etcd; beyond loopback only with TLS and users", field: func(p *Proxy) any { return &p.EtcdListen }},
		{name: "etcd-listen-cert", kind: kindText, usage: "PEM file of the certificate that the proxy's own etcd shows; means TLS", field: func(p *Proxy) any { return &p.EtcdListenCert }},
		{name: "etcd-listen-key", kind: kindText, usage: "PEM file of its key", field: func(p *Proxy) any { return &p.EtcdListenKey }},
		{name: "etcd-listen-client-ca", kind: kindText, usage: "PEM file of authorities, of one of which the clients of the proxy's own etcd must show a certificate", field: func(p *Proxy) any { return &p.EtcdListenClientCA }},
		{name: "etcd-data-dir", kind: kindText, usage: "data of the proxy's own etcd (default pdmesh/etcd-<port> in the user's state directory)", field: func(p *Proxy) any { return &p.EtcdDataDir }},
		{name: "etcd-prefix", kind: kindText, def: "/pd", usage: "root of all keys in etcd", field: func(p *Proxy) any { return &p.EtcdPrefix }},
		{name: "etcd-gateway", kind: kindSwitch, def: "on", usage: "JSON gateway of the proxy's own etcd, for nodes that register with curl", field: func(p *Proxy) any { return &p.EtcdGateway }},

		{name: "state-dir", kind: kindText, usage: "where the membership is saved for a start without etcd; empty saves nothing (default pdmesh/proxy-<port> in the user's state directory)", field: func(p *Proxy) any { return &p.StateDir }},
		{name: "audit-interval", kind: kindDuration, def: "15s", usage: "between two comparisons of all keys in etcd with what its watch has told", field: func(p *Proxy) any { return &p.AuditInterval }},
		{name: "orphan-grace", kind: kindDuration, def: "1m", usage: "how long an instance whose lease was lost, and that answers, is served while most others are registered", field: func(p *Proxy) any { return &p.OrphanGrace }},

		{name: "instance-allow", kind: kindList, usage: "networks instances may be in (CIDR or address; \"any\" for all); default loopback when etcd is on loopback", field: func(p *Proxy) any { return &p.InstanceAllow }},
		{name: "api-key", kind: kindList, secret: true, usage: "keys clients must send (better given as PD_API_KEY); none lets everybody in", field: func(p *Proxy) any { return &p.APIKeys }},
		{name: "api-keys-file", kind: kindText, usage: "file of further keys of clients, one \"key name rights\" a line; rights are priority, rank and trace, by comma; read again when it changes", field: func(p *Proxy) any { return &p.APIKeysFile }},
		{name: "engine-api-key", kind: kindText, secret: true, env: []string{"OPENAI_API_KEY"}, usage: "key sent to the engines: always with --api-key, else when the client sent none; env OPENAI_API_KEY too", field: func(p *Proxy) any { return &p.EngineAPIKey }},
		{name: "admin-api-key", kind: kindText, secret: true, env: []string{"ADMIN_API_KEY"}, usage: "key for changing the fleet over HTTP; env ADMIN_API_KEY too", field: func(p *Proxy) any { return &p.AdminAPIKey }},
		{name: "admin-listen", kind: kindText, usage: "own host:port for status, dashboard, admin routes and metrics; empty keeps them on --port", field: func(p *Proxy) any { return &p.AdminListen }},
		{name: "dashboard", kind: kindSwitch, def: "on", usage: "a page for people at /, where the fleet is seen and, with the admin key, changed; it may be seen by whoever may see /status", field: func(p *Proxy) any { return &p.Dashboard }},
		{name: "pprof-listen", kind: kindText, usage: "loopback host:port for Go's profiles (/debug/pprof/); empty offers none", field: func(p *Proxy) any { return &p.PprofListen }},

		{name: "tls-cert", kind: kindText, usage: "PEM file of the certificate for clients, and for --admin-listen; with --tls-key these speak HTTPS alone", field: func(p *Proxy) any { return &p.TLSCert }},
		{name: "tls-key", kind: kindText, usage: "PEM file of its key", field: func(p *Proxy) any { return &p.TLSKey }},
		{name: "tls-client-ca", kind: kindText, usage: "PEM file of authorities: every client must show a certificate that one of them has signed", field: func(p *Proxy) any { return &p.TLSClientCA }},
		{name: "engine-ca", kind: kindText, usage: "PEM file of the authorities that have signed the certificates of engines with scheme https (default the system's)", field: func(p *Proxy) any { return &p.EngineCA }},
		{name: "engine-cert", kind: kindText, usage: "PEM file of the certificate that engines are shown, with --engine-key", field: func(p *Proxy) any { return &p.EngineCert }},
		{name: "engine-key", kind: kindText, usage: "PEM file of its key", field: func(p *Proxy) any { return &p.EngineKey }},
		{name: "engine-server-name", kind: kindText, usage: "name that the certificate of every engine must bear (default the host of its address)", field: func(p *Proxy) any { return &p.EngineServerName }},

		{name: "allowed-origins", kind: kindJSON, usage: `origins whose pages may use the proxy from a browser, such as '["https://chat.example.com"]', or '["*"]' for all; none by default, as with vLLM`, field: func(p *Proxy) any { return &p.AllowedOrigins }},
		{name: "allowed-methods", kind: kindJSON, def: `["*"]`, usage: "methods that they may use", field: func(p *Proxy) any { return &p.AllowedMethods }},
		{name: "allowed-headers", kind: kindJSON, def: `["*"]`, usage: "headers that they may send", field: func(p *Proxy) any { return &p.AllowedHeaders }},
		{name: "allow-credentials", kind: kindSwitch, def: "off", usage: "let them send cookies and the like", field: func(p *Proxy) any { return &p.AllowCredentials }},

		{name: "server", kind: kindText, def: ServerOwn, usage: "HTTP server for completions: own (lean; hands everything unusual to std) or std (the standard library's)", field: func(p *Proxy) any { return &p.Server }},
		{name: "upstream", kind: kindText, def: UpstreamOwn, usage: "HTTP client for the instances: own (lean, plain http only; https goes to std) or std (the standard library's)", field: func(p *Proxy) any { return &p.Upstream }},
		{name: "connect-timeout", kind: kindDuration, def: "1s", usage: "to connect to an instance; it is asked up to three times in that time", field: func(p *Proxy) any { return &p.ConnectTimeout }},
		{name: "prefill-timeout", kind: kindDuration, def: "5m", usage: "for a whole prefill", field: func(p *Proxy) any { return &p.PrefillTimeout }},
		{name: "decode-first-byte-timeout", kind: kindDuration, def: "1m", usage: "until a decode instance begins to answer", field: func(p *Proxy) any { return &p.DecodeFirstByteTimeout }},
		{name: "idle-timeout", kind: kindDuration, def: "2m", usage: "between two chunks of an answer", field: func(p *Proxy) any { return &p.IdleTimeout }},
		{name: "non-stream-timeout", kind: kindDuration, def: "1h", usage: "until a decode instance begins a non-streamed answer, which it does when it is whole", field: func(p *Proxy) any { return &p.NonStreamTimeout }},
		{name: "kv-lease-budget", kind: kindDuration, def: "20s", usage: "how long after a prefill its KV cache may still be handed over", field: func(p *Proxy) any { return &p.KVLeaseBudget }},
		{name: "version-groups", kind: kindSwitch, def: "on", usage: "pair NIXL engines of the same vLLM version only, as others refuse each other's KV cache; off for engines with enforce_handshake_compat false", field: func(p *Proxy) any { return &p.VersionGroups }},
		{name: "rewrite-remote-host", kind: kindSwitch, def: "off", usage: "tell decode the address by which the proxy reached prefill, in place of the one that prefill says of itself", field: func(p *Proxy) any { return &p.RewriteRemoteHost }},
		{name: "lmcache-notify", kind: kindText, usage: "tcp://host:port where this proxy takes the notifications of LMCache's prefill instances, whose pd_proxy_host and pd_proxy_port say the same; for a single proxy and prefill instances whose agents do not take them", field: func(p *Proxy) any { return &p.LMCacheNotify }},
		{name: "lmcache-notify-timeout", kind: kindDuration, def: "30s", usage: "after a prefill's answer, until every rank has notified that LMCache's chunks have arrived; then another pair is tried", field: func(p *Proxy) any { return &p.LMCacheNotifyTimeout }},
		{name: "max-attempts", kind: kindInt, def: "4", usage: "tries for one request on different instances, the first included", field: func(p *Proxy) any { return &p.MaxAttempts }},
		{name: "max-failures", kind: kindInt, def: "3", usage: "failures in a row, on requests that another instance then served, until an instance is ejected", field: func(p *Proxy) any { return &p.MaxFailures }},
		{name: "ejection-time", kind: kindDuration, def: "1s", usage: "how long the first such ejection lasts; it doubles up to 30s, and ends with a probe", field: func(p *Proxy) any { return &p.EjectionTime }},
		{name: "slow-start", kind: kindDuration, def: "10s", usage: "until an instance that came back gets its full share", field: func(p *Proxy) any { return &p.SlowStart }},
		{name: "silence-limit", kind: kindDuration, def: "1.25s", usage: "how long an instance that keeps requests waiting may give no sign of life, while others of its role give one, before it is left; it grows up to 10s where engines answer slowly", field: func(p *Proxy) any { return &p.SilenceLimit }},
		{name: "probe-timeout", kind: kindDuration, def: "5s", usage: "limit of one probe of an instance", field: func(p *Proxy) any { return &p.ProbeTimeout }},
		{name: "retry-budget", kind: kindInt, def: "20", usage: "retries allowed, in percent of the requests of the last 10s; a burst of 64 is free", field: func(p *Proxy) any { return &p.RetryBudget }},
		{name: "max-body-bytes", kind: kindBytes, def: "32MiB", usage: "largest request body taken; larger ones get 413", field: func(p *Proxy) any { return &p.MaxBodyBytes }},
		{name: "max-bodies-memory", kind: kindBytes, def: "0", usage: "memory for all request bodies together; beyond it requests get 503, but for a single one and for those under 4KiB. 0 takes half of the memory limit (GOMEMLIMIT or the container's), or a quarter of the machine's memory", field: func(p *Proxy) any { return &p.MaxBodiesMemory }},
		{name: "max-connections", kind: kindInt, def: "0", usage: "clients connected at once; idle connections are closed for new ones, and the others wait; 0 means as many as the limit on descriptors leaves room for", field: func(p *Proxy) any { return &p.MaxConnections }},
		{name: "fallback", kind: kindText, def: FallbackDecode, usage: "when no prefill instance is left: decode (decode instances alone) or none (503)", field: func(p *Proxy) any { return &p.Fallback }},

		{name: "disaggregate", kind: kindText, def: DisaggregateAlways, usage: "who goes through prefill and decode: always (all that can), auto (who is not better served by decode alone, as far as earlier requests tell) or never (for comparison)", field: func(p *Proxy) any { return &p.Disaggregate }},
		{name: "policy", kind: kindText, usage: "which of several instances gets a request, of either role: " + strings.Join(policy.Names(), ", "), field: func(p *Proxy) any { return &p.Policy }},
		{name: "prefill-policy", kind: kindText, usage: "the same for prefill instances (default that of --policy, or " + policy.DefaultPrefill + ")", field: func(p *Proxy) any { return &p.PrefillPolicy }},
		{name: "decode-policy", kind: kindText, usage: "the same for decode instances (default that of --policy, or " + policy.Default + ")", field: func(p *Proxy) any { return &p.DecodePolicy }},
		{name: "cache-weight", kind: kindInt, def: strconv.Itoa(policy.DefaultCacheWeight), usage: "how many tokens of prompts that wait for an instance weigh as much as one token in its cache, for policies that know caches", field: func(p *Proxy) any { return &p.CacheWeight }},
		{name: "kv-events", kind: kindSwitch, def: "off", usage: "follow what engines publish of their KV caches (--kv-events-config); the policy " + policy.KVAware + " does so in any case", field: func(p *Proxy) any { return &p.KVEvents }},
		{name: "load-digests", kind: kindSwitch, def: "on", usage: "tell the other proxies, in etcd, what this one has in flight, and count what they have", field: func(p *Proxy) any { return &p.LoadDigests }},
		{name: "load-interval", kind: kindDuration, def: "1s", usage: "the least time between two of these digests of one proxy; a shorter one is a write to etcd as much more often", field: func(p *Proxy) any { return &p.LoadInterval }},
		{name: "scrape-interval", kind: kindDuration, def: "5s", usage: "between two looks at the metrics of one engine, for its KV cache and waiting requests; 0s never looks", field: func(p *Proxy) any { return &p.ScrapeInterval }},
		{name: "waiting-retry-interval", kind: kindDuration, def: "2s", usage: "between two probes of an instance that was added before it was up", field: func(p *Proxy) any { return &p.WaitingRetryInterval }},
		{name: "max-waiting-retries", kind: kindInt, def: "0", usage: "probes until such an instance is given up; 0 means never", field: func(p *Proxy) any { return &p.MaxWaitingRetries }},

		{name: "client-bound", kind: kindSwitch, def: "off", env: []string{"CLIENT_BOUND"}, usage: "send requests of one session to the same instances, whatever the policy; env CLIENT_BOUND too", field: func(p *Proxy) any { return &p.ClientBound }},
		{name: "client-bound-key", kind: kindText, def: "session-id", env: []string{"CLIENT_BOUND_KEY"}, usage: "header that names the session, for --client-bound and the policy session; env CLIENT_BOUND_KEY too", field: func(p *Proxy) any { return &p.ClientBoundKey }},

		{name: "zone", kind: kindText, usage: "where this proxy is: instances whose label zone is the same are preferred; without one, decode instances in the zone of the prefill instance", field: func(p *Proxy) any { return &p.Zone }},
		{name: "access-log", kind: kindSwitch, def: "on", usage: "one log line per request", field: func(p *Proxy) any { return &p.AccessLog }},
		{name: "trace-headers", kind: kindSwitch, def: "off", usage: "tell every client in X-PD-... headers which instances served it", field: func(p *Proxy) any { return &p.TraceHeaders }},
		{name: "otlp-endpoint", kind: kindText, usage: "URL of a collector that takes traces by OTLP, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_ENDPOINT and the other OTEL_ variables count too; without either none are made", field: func(p *Proxy) any { return &p.OTLPEndpoint }},
		{name: "trace-sample", kind: kindText, usage: "share of the requests that are traced, from 0 to 1; a request whose client sent a traceparent is traced if that says so (default 0.01, or what OTEL_TRACES_SAMPLER says)", field: func(p *Proxy) any { return &p.TraceSample }},
		{name: "shutdown-timeout", kind: kindDuration, def: "30s", usage: "for running requests when the proxy is told to stop", field: func(p *Proxy) any { return &p.ShutdownTimeout }},
		{name: "log-level", kind: kindText, def: "info", usage: "error, warn, info, debug or trace", field: func(p *Proxy) any { return &p.LogLevel }},
		{name: "log-format", kind: kindText, def: "text", usage: "text or json", field: func(p *Proxy) any { return &p.LogFormat }},

		{name: "config", kind: kindText, flagOnly: true, env: []string{"PD_CONFIG"}, usage: "YAML file with settings under the names of these flags", field: func(p *Proxy) any { return &p.ConfigFile }},
		{name: "print-config", kind: kindSwitch, def: "off", flagOnly: true, usage: "print what would be used, secrets masked, and exit", field: func(p *Proxy) any { return &p.PrintConfig }},
	}
}

// RegisterProxyFlags adds every setting of the proxy to fs. LoadProxy reads
// them back after fs was parsed; feed the parser NormalizeArgs(args).
func RegisterProxyFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false // --help keeps what belongs together side by side
	for _, s := range proxySettings() {
		f := fs.VarPF(&rawValue{kind: s.kind, text: s.def}, s.name, s.short, s.usage)
		if s.kind == kindSwitch {
			f.NoOptDefVal = "on" // --trace-headers alone
		}
	}
	// Those of the reference proxies are not shown among ours: a text of its
	// own in --help says that they are taken.
	for _, r := range referenceFlags() {
		fs.VarPF(&rawValue{kind: r.kind}, r.name, "", r.usage).Hidden = true
	}
}

// rawValue keeps a flag as it was typed, so that one place reads the values of
// all sources. A list gathers what its repetitions said.
type rawValue struct {
	kind  kind
	text  string
	given bool
}

// String implements pflag.Value.
func (v *rawValue) String() string { return v.text }

// Set implements pflag.Value.
func (v *rawValue) Set(s string) error {
	if v.kind == kindList && v.given {
		v.text += "," + s
		return nil
	}
	v.text, v.given = s, true
	return nil
}

// Type implements pflag.Value.
func (v *rawValue) Type() string { return string(v.kind) }
