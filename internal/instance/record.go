package instance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxRecordBytes bounds the value of one key in etcd.
const MaxRecordBytes = 16 << 10

// RecordVersion is the version this code writes into "v".
const RecordVersion = 1

// ProbeHeader is in every request with which a program of this project checks that an
// engine is at an address. Engines ignore it; a proxy answers 508 (Loop Detected), because
// it is not an engine.
const ProbeHeader = "X-Pd-Probe"

// CauseSlow is the Cause of an instance that is Down because its engine has not
// answered the agent's probes. No probe was refused or failed, so the engine may be busy,
// and a proxy uses the instance while no other one is ready.
const CauseSlow = "slow"

// CauseNoEngineIDs is the Cause of an instance that is Starting although its engine answers,
// because its bootstrap server does not return engine ids.
const CauseNoEngineIDs = "no engine ids"

// TransferNIXL is the Transfer of an engine that transfers KV caches by NIXL.
const TransferNIXL = "nixl"

// PortBootstrap is the name in Record.Ports of the bootstrap server of a Mooncake
// prefill engine.
const PortBootstrap = "bootstrap"

// PortNIXL is the name in Record.Ports of the side channels of a NIXL engine, where its
// peers request blocks: one port for each rank that its agent starts. No proxy dials them;
// the record shows whether two engines have the same port.
const PortNIXL = "nixl_side_channel"

// DefaultBootstrapPort is vLLM's default port of the bootstrap server.
const DefaultBootstrapPort = 8998

// PortP2P is the name in Record.Ports of the side channel of an engine whose
// OffloadingConnector has a tier of type p2p: that of the first rank of the instance.
const PortP2P = "p2p"

// The names in Record.Ports of the ports for LMCache's PD backend.
const (
	PortLMCacheInit  = "lmcache_init"  // of decode: the peer handshake, one port for each rank
	PortLMCacheAlloc = "lmcache_alloc" // of decode: where prefill asks for buffers, one port for each rank
	// PortLMCacheNotify is where proxies read LMCache's notifications from the agent of a
	// prefill instance, over HTTP.
	PortLMCacheNotify = "lmcache_notify"
	// PortLMCachePull is where the agent of a prefill instance receives these notifications,
	// over ZeroMQ.
	PortLMCachePull = "lmcache_pull"
)

// Record is the JSON value of an instance's key. Unknown fields are ignored.
// It never holds credentials: every reader of etcd sees it.
type Record struct {
	V       int      `json:"v,omitempty"`
	ID      string   `json:"id,omitempty"` // incarnation, see Instance.Incarnation
	Role    Role     `json:"role,omitempty"`
	Address string   `json:"address,omitempty"`
	Scheme  string   `json:"scheme,omitempty"` // "http" (default) or "https"
	Models  []string `json:"models,omitempty"`
	// ModelsTruncated is set if the engine serves more models than the record has space for;
	// absent means that the list is complete, or that its writer did not know. See FitModels.
	ModelsTruncated bool              `json:"models_truncated,omitempty"`
	Connector       string            `json:"connector,omitempty"` // "" = the proxy's default
	KVRole          string            `json:"kv_role,omitempty"`   // kv_producer, kv_consumer, kv_both
	EngineIDs       map[string]string `json:"engine_ids,omitempty"`
	Ports           map[string][]int  `json:"ports,omitempty"`
	ReceiverHost    string            `json:"receiver_host,omitempty"` // host of the lmcache ports, "" = that of Address
	ZMQAddress      string            `json:"zmq_address,omitempty"`
	// KVEvents has the endpoints of KV events by data-parallel rank.
	KVEvents     map[string]KVEvents `json:"kv_events,omitempty"`
	TransferMode string              `json:"transfer_mode,omitempty"`
	Transfer     string              `json:"transfer,omitempty"` // KV transfer of the engine, see TransferNIXL; "" if unknown
	DPSize       int                 `json:"dp_size,omitempty"`
	TPSize       int                 `json:"tp_size,omitempty"`
	PPSize       int                 `json:"pp_size,omitempty"`
	BlockSize    int                 `json:"block_size,omitempty"`
	KVLease      int                 `json:"kv_lease,omitempty"` // seconds that the engine keeps the KV cache of a prefill; 0 its version's default
	MaxModelLen  int                 `json:"max_model_len,omitempty"`
	Version      string              `json:"version,omitempty"`
	Weight       *int                `json:"weight,omitempty"` // nil = 100
	State        State               `json:"state,omitempty"`
	Cause        string              `json:"cause,omitempty"`      // why State is Down or Starting: CauseSlow, CauseNoEngineIDs, or a few words for display
	StartedAt    *time.Time          `json:"started_at,omitempty"` // for display; never compared between machines
	Source       string              `json:"source,omitempty"`     // agent, direct, admin, flags, import
	HostID       string              `json:"host_id,omitempty"`    // distinguishes network namespaces
	Agent        string              `json:"agent,omitempty"`
	Labels       map[string]string   `json:"labels,omitempty"`
	// Proxies names the proxies that use the instance, because it is on their
	// command lines or was added through one of them; empty means every proxy.
	Proxies []string `json:"proxies,omitempty"`
}

// KVEvents has the endpoints of one rank in the notation of vLLM's --kv-events-config; a
// wildcard represents the instance's host.
type KVEvents struct {
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	Topic          string `json:"topic,omitempty"`
}

// For reports whether a record is for a proxy. The name of a proxy is host:port of its
// listener, or MACHINE/host:port if proxies on other machines may use the same etcd. An
// entry without a machine also matches: it is from before other machines could use the etcd.
func (r *Record) For(proxy string) bool {
	return len(r.Proxies) == 0 || slices.ContainsFunc(r.Proxies, func(p string) bool { return SameProxy(p, proxy) })
}

// SameProxy reports whether an entry of Record.Proxies names a proxy; see Record.For.
func SameProxy(entry, proxy string) bool {
	return entry == proxy || !strings.Contains(entry, "/") && strings.HasSuffix(proxy, "/"+entry)
}

// Printable makes text from etcd or a client safe for a terminal, a log line or a reason.
// It escapes control characters and invalid UTF-8, and cuts a result of more than limit
// bytes with "..."; a limit of 0 means none.
func Printable(s string, limit int) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		if limit > 0 && b.Len() >= limit {
			b.WriteString("...")
			break
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < 0x20 || (r >= 0x7f && r < 0xa0) || isFormatControl(r):
			b.WriteString(escapeRune(r))
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// isFormatControl reports whether a character changes the display of the text around it:
// bidirectional overrides, zero-width marks, line separators.
func isFormatControl(r rune) bool {
	return r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff
}

func escapeRune(r rune) string {
	switch r {
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// SourceAgent is the Source of records that an agent writes and keeps up to date.
const SourceAgent = "agent"

// FitModels drops models from the end of the list until the JSON value of the record has at most
// MaxRecordBytes, and sets ModelsTruncated if it has dropped any. Engines list base models first,
// then LoRA adapters in the order in which they were loaded.
func (r *Record) FitModels() {
	if !r.tooLarge() || len(r.Models) == 0 {
		return
	}
	r.ModelsTruncated = true
	all := r.Models
	n := sort.Search(len(all), func(n int) bool { r.Models = all[:n+1]; return r.tooLarge() })
	r.Models = slices.Clone(all[:n])
}

// tooLarge reports whether the JSON value of the record, as package schema encodes it, has more than
// MaxRecordBytes.
func (r *Record) tooLarge() bool {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(r)                 // strings, numbers and times cannot fail
	return b.Len()-1 > MaxRecordBytes // without the final line feed
}

// Maintained reports whether an agent keeps the record up to date. Any other record was written
// once, and does not reflect models that the engine has loaded or unloaded since.
func (i *Instance) Maintained() bool { return !i.Static() && i.Record.Source == SourceAgent }

// Serves reports whether an engine with these facts serves the wanted model: any
// id or root of /v1/models equals it. Unless strict, the last path component is
// enough, so that /models/Qwen2.5-7B and Qwen/Qwen2.5-7B name the same model. An empty
// want matches every engine.
func (f *Facts) Serves(want string, strict bool) bool {
	if want == "" {
		return true
	}
	last := lastComponent(want)
	for _, names := range [][]string{f.Models, f.Roots} {
		for _, have := range names {
			if have != "" && (have == want || !strict && last != "" && lastComponent(have) == last) {
				return true
			}
		}
	}
	return false
}

func lastComponent(s string) string {
	s = strings.TrimRight(s, "/")
	return s[strings.LastIndexByte(s, '/')+1:]
}
