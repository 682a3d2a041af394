package config

import (
	"net/netip"
	"time"

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// The values of Proxy.Fallback.
const (
	// FallbackDecode sends a request to a decode instance alone while no
	// prefill instance can be picked.
	FallbackDecode = "decode"
	// FallbackNone answers 503 instead.
	FallbackNone = "none"
)

// The values of Proxy.Disaggregate.
const (
	// DisaggregateAlways sends every request that can through prefill and decode.
	DisaggregateAlways = "always"
	// DisaggregateAuto leaves it to decode alone where that is better.
	DisaggregateAuto = "auto"
	// DisaggregateNever leaves all to decode alone, for comparison.
	DisaggregateNever = "never"
)

// The values of Proxy.Upstream.
const (
	// ServerOwn is the proxy's own HTTP/1.1 server for completions.
	ServerOwn = "own"
	// ServerStd is the standard library's server.
	ServerStd = "std"
	// UpstreamOwn is the proxy's own HTTP/1.1 client.
	UpstreamOwn = "own"
	// UpstreamStd is the standard library's.
	UpstreamStd = "std"
)

// Proxy is everything that can be set about a proxy. LoadProxy fills and
// checks it; who builds one by hand (a test) calls Validate.
type Proxy struct {
	Host string // address to listen on: an IP or a host name, no port
	Port int    // 0 = any free port

	Model     string // "" serves whatever model the instances have
	Connector string // dialect of instances whose record names none

	// Instances named on the command line, canonical host:port, no duplicates.
	Prefill []string
	Decode  []string

	// DecodePorts are named ports of decode instances, by address. Only LMCache's
	// command line says any: see instance.PortLMCacheInit.
	DecodePorts map[string]map[string][]int

	// ZMQRegister is where MoRI-IO engines register themselves, tcp://host:port; "" for
	// nowhere.
	ZMQRegister string

	// EtcdEndpoints are host:port of an etcd that runs elsewhere; none means
	// that this proxy embeds its own, and EtcdListen, EtcdDataDir and
	// EtcdGateway say how.
	EtcdEndpoints []string
	EtcdUsername  string
	EtcdPassword  string
	// EtcdPasswordFile is where LoadProxy has EtcdPassword from; "" = from elsewhere.
	EtcdPasswordFile string
	EtcdHTTPS        bool // an endpoint was written with https://
	// Files for TLS to etcd; each may be "".
	EtcdCA, EtcdCert, EtcdKey string

	EtcdListen string // host:port of the embedded etcd's client port
	// Files for TLS there; without EtcdListenCert it is plain, and on loopback.
	// EtcdListenClientCA makes its clients show a certificate.
	EtcdListenCert, EtcdListenKey, EtcdListenClientCA string

	EtcdDataDir string // never empty while etcd is embedded
	EtcdPrefix  string // root of all keys, no trailing slash
	EtcdGateway bool   // the embedded etcd's JSON gateway

	StateDir      string        // where the membership is saved; "" = nowhere
	AuditInterval time.Duration // between two comparisons of all keys with etcd
	OrphanGrace   time.Duration // for instances whose lease was lost, while most are registered

	// InstanceAllow lists the networks an instance may be in. Nil means that
	// every address is allowed but those that are refused always.
	InstanceAllow []netip.Prefix

	APIKeys      []string // keys of clients; none = no key is asked for
	APIKeysFile  string   // further ones, with names and rights; "" = none
	EngineAPIKey string   // key sent to the engines
	AdminAPIKey  string   // key of the routes that change the fleet; "" = these routes refuse
	AdminListen  string   // host:port for status, admin and metrics; "" = same as clients
	PprofListen  string   // loopback host:port for Go's profiles; "" = none

	// Files for TLS with clients; without TLSCert they speak plain HTTP. TLSClientCA makes
	// them show a certificate.
	TLSCert, TLSKey, TLSClientCA string
	// Files for TLS to engines with scheme https, and the name in their certificates
	// where it is not the host of their address; each may be "".
	EngineCA, EngineCert, EngineKey, EngineServerName string

	// Which pages of other origins may use the proxy from a browser; see httpapi.CORS.
	AllowedOrigins, AllowedMethods, AllowedHeaders settings.JSONList
	AllowCredentials                               bool

	Server                 string // HTTP server for completions: ServerOwn or ServerStd
	Upstream               string // HTTP client for the instances: UpstreamOwn or UpstreamStd
	ConnectTimeout         time.Duration
	PrefillTimeout         time.Duration
	DecodeFirstByteTimeout time.Duration
	IdleTimeout            time.Duration // between two chunks of an answer
	NonStreamTimeout       time.Duration // until a non-streamed answer begins
	VersionGroups          bool          // pairs of one vLLM version only
	RewriteRemoteHost      bool          // in hand-overs, by the host that was dialled
	LMCacheNotify          string        // tcp://host:port where LMCache's prefill instances notify; "" = at their agents
	LMCacheNotifyTimeout   time.Duration // from a prefill's answer to its last notification
	KVLeaseBudget          time.Duration // how long after a prefill its KV may still be used
	MaxAttempts            int           // tries for one request, the first included
	MaxFailures            int           // strikes in a row until an ejection
	EjectionTime           time.Duration // of the first one
	SlowStart              time.Duration // after an ejection
	SilenceLimit           time.Duration // without a sign of life, beside instances that give one
	ProbeTimeout           time.Duration
	RetryBudget            int // percent of the requests of the last 10 s
	MaxBodyBytes           int64
	MaxBodiesMemory        int64  // bytes of all request bodies together; 0 = by the memory limit
	MaxConnections         int    // clients connected at once; 0 = by the limit on descriptors
	Disaggregate           string // DisaggregateAlways, DisaggregateAuto or DisaggregateNever
	Fallback               string // FallbackDecode or FallbackNone

	KVEvents       bool          // what engines publish of their KV caches is followed
	LoadDigests    bool          // proxies tell each other what they have in flight
	LoadInterval   time.Duration // the least time between two times that one tells
	ScrapeInterval time.Duration // between two looks at an engine's metrics; 0 = none

	WaitingRetryInterval time.Duration // between two probes of a pending add
	MaxWaitingRetries    int           // 0 = for ever

	// Policy names what chooses among instances, for both roles; see package policy. ""
	// leaves each its own.
	Policy string
	// PrefillPolicy and DecodePolicy are those of the roles. LoadProxy fills them with
	// Policy where nothing else is said.
	PrefillPolicy, DecodePolicy string
	// CacheWeight is how many tokens that wait weigh as much as one in a cache.
	CacheWeight int

	// ClientBound sends requests with the same value of the header
	// ClientBoundKey to the same instances while those can serve.
	ClientBound    bool
	ClientBoundKey string

	// Zone is where this proxy is; instances with the same label zone are preferred.
	Zone string

	AccessLog       bool
	Dashboard       bool          // the page at /
	TraceHeaders    bool          // X-PD-... response headers for everybody
	OTLPEndpoint    string        // URL of a collector; "" = what the OTEL_ variables say
	TraceSample     string        // share of the requests that are traced; "" = the same, or the default
	ShutdownTimeout time.Duration // for running streams at SIGTERM

	LogLevel  string
	LogFormat string

	ConfigFile  string
	PrintConfig bool

	// Notices are what whoever started the proxy should know about the command
	// line: flags that have no effect, defaults that a reference proxy's form
	// brought along. They are warnings, a sentence each.
	Notices []string

	// sources says for each setting that is no default where it came from.
	sources settings.Sources
}

// EtcdTLS says how etcd is reached.
func (p *Proxy) EtcdTLS() etcdaccess.TLS {
	return etcdaccess.TLS{On: p.EtcdHTTPS, Files: certs.Files{CA: p.EtcdCA, Cert: p.EtcdCert, Key: p.EtcdKey}}
}

// Embedded tells whether this proxy is to run its own etcd.
func (p *Proxy) Embedded() bool { return len(p.EtcdEndpoints) == 0 }
