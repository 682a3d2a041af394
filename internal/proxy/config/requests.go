package config

import (
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// The values of Requests.Fallback.
const (
	// FallbackDecode sends a request to a decode instance only while no prefill instance
	// can be picked.
	FallbackDecode = "decode"
	// FallbackNone answers 503 instead.
	FallbackNone = "none"
)

// Requests has the time limits, retries and memory limits of requests.
type Requests struct {
	Upstream               string // HTTP client for the instances: upstream.KindOwn or upstream.KindStd
	ConnectTimeout         time.Duration
	PrefillTimeout         time.Duration
	DecodeFirstByteTimeout time.Duration
	IdleTimeout            time.Duration // between two chunks of an answer
	BusyTimeout            time.Duration // in place of all timeouts of answers, while the engine makes progress
	SSEKeepAliveInterval   time.Duration // between two keep-alives in a silent stream; 0 = none
	NonStreamTimeout       time.Duration // until a non-streamed answer begins
	ContinueStreams        int           // maximum continuations of a stream whose decode leg was lost
	MaxAttempts            int           // attempts for one request, including the first
	RetryBudget            int           // percent of the requests of the last 10 s
	Fallback               string        // FallbackDecode or FallbackNone
	MaxBodyBytes           int64
	MaxBodiesMemory        int64         // bytes of all request bodies and large answers together; 0 = from the memory limit
	MaxConnections         int           // clients connected at once; 0 = from the limit on descriptors
	ShutdownDelay          time.Duration // between SIGTERM and the end of accepting; 0 = none
	ShutdownTimeout        time.Duration // for running requests after that
}

// settings returns the time limits, the retries and the memory limits of requests.
func (r *Requests) settings() settings.Table {
	return slices.Concat(settings.About("Timeouts",
		settings.Setting{Name: "connect-timeout", Kind: settings.Time, Takes: anyTime, Default: "1s", Rare: true, Usage: "time limit for connecting to an instance, with up to three tries", Into: &r.ConnectTimeout},
		settings.Setting{Name: "prefill-timeout", Kind: settings.Time, Takes: anyTime, Default: "5m", Usage: "time limit for the whole answer of prefill", Into: &r.PrefillTimeout},
		settings.Setting{Name: "decode-first-byte-timeout", Kind: settings.Time, Takes: anyTime, Default: "1m", Usage: "time limit for the first byte of a decode answer", Into: &r.DecodeFirstByteTimeout},
		settings.Setting{Name: "idle-timeout", Kind: settings.Time, Takes: anyTime, Default: "2m", Usage: "longest pause between two chunks of an answer", Into: &r.IdleTimeout},
		settings.Setting{Name: "non-stream-timeout", Kind: settings.Time, Takes: anyTime, Default: "1h", Usage: "time limit for the first byte of an answer that is not streamed; engines send it when it is complete", Into: &r.NonStreamTimeout},
		settings.Setting{Name: "busy-timeout", Kind: settings.Time, Takes: anyTime, Default: "30m", Rare: true, Usage: "while the metrics of the engine show progress: limit in place of --prefill-timeout, --decode-first-byte-timeout, --idle-timeout and --non-stream-timeout; a shorter one has no effect", Into: &r.BusyTimeout},
		settings.Setting{Name: "shutdown-delay", Kind: settings.Time, Takes: "0s to 1h", Default: "0s", Usage: "after SIGTERM: how long to go on serving while /readyz answers 503, so that load balancers notice; at most 1h; SIGINT or a second signal skips it", Into: &r.ShutdownDelay},
		settings.Setting{Name: "shutdown-timeout", Kind: settings.Time, Takes: anyTime, Default: "30s", Usage: "how long running requests may take once no new ones are accepted (after SIGTERM and --shutdown-delay)", Into: &r.ShutdownTimeout},
	), settings.About("Requests",
		settings.Setting{Name: "upstream", Kind: settings.Text, Takes: upstream.KindOwn + " or " + upstream.KindStd, Default: upstream.KindOwn, Rare: true, Usage: "HTTP client for the instances: own (plain HTTP only; https uses std) or std (Go's net/http)", Into: &r.Upstream},
		settings.Setting{Name: "sse-keep-alive-interval", Kind: settings.Time, Takes: "100ms to 1h, or 0 for none", Default: "0", Rare: true, Usage: "send an SSE comment to the client of a stream when nothing has been sent for so long, also before the first token; after it, errors are events instead of a status; 0 means off, otherwise 100ms to 1h", Into: &r.SSEKeepAliveInterval},
		settings.Setting{Name: "continue-streams", Kind: settings.Number, Takes: "0 (off) to 100", Default: "0", Usage: "how many times a stream may be continued on another instance after losing its decode instance; engines then report token ids, which clients do not get; 0 means off, at most 100", Into: &r.ContinueStreams},
		settings.Setting{Name: "max-attempts", Kind: settings.Number, Takes: "1 (no retry) to 100", Default: "4", Usage: "attempts for one request, including the first, on different instances", Into: &r.MaxAttempts},
		settings.Setting{Name: "retry-budget", Kind: settings.Number, Takes: "0 (a burst only) to 1000 percent", Default: "20", Rare: true, Usage: "limit for retries, in percent of the requests of the last 10s, plus a burst of 64", Into: &r.RetryBudget},
		settings.Setting{Name: "fallback", Kind: settings.Text, Takes: FallbackDecode + " or " + FallbackNone, Default: FallbackDecode, Usage: "without a usable prefill instance: decode (requests are decode-only) or none (503)", Into: &r.Fallback},
		settings.Setting{Name: "max-body-bytes", Kind: settings.Bytes, Takes: "1KiB to 4GiB", Default: "32MiB", Usage: "largest request body; larger ones get 413", Into: &r.MaxBodyBytes},
		settings.Setting{Name: "max-bodies-memory", Kind: settings.Bytes, Takes: "1MiB to 1TiB, or 0 for a share of the memory limit", Default: "0", Rare: true, Usage: "limit for all request bodies together, and for answers that are held back, as far as each is over 1MiB; beyond it requests get 503, except a single body and those under 4KiB; 0 means half of the memory limit (GOMEMLIMIT or the container's), or a quarter of the machine's memory", Into: &r.MaxBodiesMemory},
		settings.Setting{Name: "max-connections", Kind: settings.Number, Default: "0", Rare: true, Usage: "limit for open connections of clients; beyond it requests get 503 and the connection ends, except health checks and admin routes; 0 means nearly half of the limit on file descriptors", Into: &r.MaxConnections},
	))
}

func (r *Requests) check(c *complaints) {
	if r.MaxConnections < 0 {
		c.bad("max-connections", "%d is negative; use 0 for nearly half of the limit on file descriptors", r.MaxConnections)
	}
}

// KVTransfer has the settings of KV transfer between prefill and decode.
type KVTransfer struct {
	KVLeaseBudget        time.Duration // how long after prefill its KV cache may be transferred
	VersionGroups        bool          // whether NIXL pairs must have the same vLLM version
	RewriteRemoteHost    bool          // whether transfer params get the host at which the proxy reaches prefill
	LMCacheNotify        string        // tcp://host:port where LMCache's prefill instances notify; "" = at their agents
	LMCacheNotifyTimeout time.Duration // from a prefill's answer to its last notification
}

func (h *KVTransfer) settings() settings.Table {
	return settings.About("KV transfer",
		settings.Setting{Name: "kv-lease-budget", Kind: settings.Time, Takes: anyTime, Default: "20s", Rare: true, Usage: "how long after prefill its KV cache may be transferred", Into: &h.KVLeaseBudget},
		settings.Setting{Name: "version-groups", Kind: settings.OnOff, Default: "on", Usage: "pair only NIXL engines of the same vLLM version, because others refuse each other's KV cache; turn off for engines with enforce_handshake_compat false", Into: &h.VersionGroups},
		settings.Setting{Name: "rewrite-remote-host", Kind: settings.OnOff, Default: "off", Rare: true, Usage: "send decode the host at which the proxy reaches prefill, instead of the host in the answer of prefill", Into: &h.RewriteRemoteHost},
		settings.Setting{Name: "lmcache-notify", Kind: settings.Text, Usage: "tcp://host:port where this proxy receives notifications of LMCache's prefill instances, as in their pd_proxy_host and pd_proxy_port; for a single proxy, and prefill instances whose agents do not receive them", Into: &h.LMCacheNotify},
		settings.Setting{Name: "lmcache-notify-timeout", Kind: settings.Time, Takes: anyTime, Default: "30s", Rare: true, Usage: "how long to wait, after the answer of prefill, for LMCache's notifications of all ranks; then another pair is tried", Into: &h.LMCacheNotifyTimeout},
	)
}

func (h *KVTransfer) check(c *complaints) {
	if _, err := zmq.ParseEndpoint(h.LMCacheNotify); h.LMCacheNotify != "" && err != nil {
		c.bad("lmcache-notify", "%w", err)
	}
}
