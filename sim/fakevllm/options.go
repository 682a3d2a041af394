package fakevllm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// RecordNone as Options.RecordLimit keeps no record of requests.
const RecordNone = -1

// Options describes one engine. The zero value is a plain engine on a free
// port of 127.0.0.1 that serves the model "fake-model" without delays.
type Options struct {
	Addr   string // listen address, default "127.0.0.1:0"
	Role   Role
	Mode   Mode     // default Plain
	Models []string // served names, default "fake-model"
	// Adapters are the LoRA adapters of --lora-modules, NAME or NAME=PATH. RuntimeLoRA is
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING: there are the routes that load and unload adapters.
	Adapters    []string
	RuntimeLoRA bool
	APIKey      string // required on /v1 when set
	Version     string // of /version, default "0.24.0"
	MaxModelLen int    // default 1<<20 tokens

	// Transcription adds the audio routes.
	Transcription bool
	// TokenizerInfo is vLLM's --enable-tokenizer-info-endpoint.
	TokenizerInfo bool

	TTFT       time.Duration // time until the first token of every request
	ITL        time.Duration // time between tokens
	MaxRunning int           // requests generating at once, others wait; 0 is no limit

	// SplitCharacters makes the model write some characters as one token per byte, so that
	// ids may end in a part of a character.
	SplitCharacters bool
	// ReasoningParser and ToolParser are vLLM's --reasoning-parser (qwen3 or deepseek_r1) and
	// --tool-call-parser (hermes), default none. With one of them chats have reasoning, content and,
	// if tools are offered, up to two tool calls; ParsedWords is the mean number of words of each
	// of these, default 24.
	ReasoningParser string
	ToolParser      string
	ParsedWords     int

	// FineTokens tokenizes text as TokenizeFine does.
	FineTokens bool
	// BlockSize is the number of tokens in a block of the KV cache, default 16.
	// CacheBlocks is the number of blocks. 0 means no limit, and no prefix caching:
	// only blocks that the connector loads are found.
	BlockSize   int
	CacheBlocks int
	// KVEvents configures the events about that cache; nil publishes none.
	KVEvents *KVEvents
	// PrefillRate is the number of prompt tokens computed per second, one prompt after
	// the other, and LoadRate the number that a connector loads; 0 takes no time. Both
	// times are added to TTFT.
	PrefillRate float64
	LoadRate    float64
	// ITLPerRequest is added to ITL for every other running request. ChunkTokens is
	// vLLM's max_num_batched_tokens, default 2048: while a prompt is computed, every
	// token waits for a chunk of this size.
	ITLPerRequest time.Duration
	ChunkTokens   int

	// Shared joins engines of one process in plain mode: it is their KV pool.
	Shared *Shared
	// KVLease is the time that a finished prefill waits for its decode; default 30 s.
	KVLease time.Duration
	// Bidirectional is bidirectional_kv_xfer of a NIXL decode engine: it hands over what
	// it has when it ends, in its answer and, as vLLM 0.33 does, in the chunk of a stream
	// that has the finish reason.
	Bidirectional bool
	// RewrittenParams accepts transfer params that were decoded and encoded again, as
	// real engines do. By default what does not come back byte for byte is refused.
	RewrittenParams bool
	// EngineID is engine_id of --kv-transfer-config: the engine has the same id in every life, so a
	// NIXL decode that comes with the params of a previous incarnation reads other requests' blocks. "" is a
	// random id for each life. It is for engines with one data-parallel rank.
	EngineID string
	// SideChannelAddr is where a NIXL engine serves its offers, default
	// port 0 on the host of Addr; SideChannelHost is the host in its transfer params,
	// default the host it listens on.
	SideChannelAddr string
	SideChannelHost string

	// BootstrapAddr is where a Mooncake producer has its bootstrap server, default
	// port 0 on the host of Addr; it is the same in every life.
	BootstrapAddr string
	// TransferTimeout is vLLM's VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, default 480 s:
	// how long a decode waits for its prefill, and a prefill's blocks for a decode.
	TransferTimeout time.Duration

	// DPSize is how many data-parallel ranks there are behind the address, default 1. More
	// than one is for the modes plain, nixl, nixl_push and ascend, without KV events.
	DPSize int
	// Ranks is the tensor-parallel size of an LMCache engine, default 1.
	Ranks int
	// AllocAddrs are where an LMCache decode takes buffers' requests, one for each
	// rank, default port 0 on the host of Addr; they are the same in every life.
	AllocAddrs []string
	// NotifyAddr is host:port of the PULL socket that an LMCache prefill notifies;
	// "" sends no notification.
	NotifyAddr string

	// PingTo is where a MoRI-IO engine registers itself, tcp://host:port, each
	// PingInterval (default 3 s); PingOld is the form of vLLM up to 0.19. TPSize is
	// what it says of itself, default 1.
	PingTo       string
	PingInterval time.Duration
	PingOld      bool
	TPSize       int

	// SchedulingPolicy is vLLM's --scheduling-policy. With "fcfs" a priority other than 0 is refused. The
	// order of requests does not depend on it.
	SchedulingPolicy string
	// Turns are what the model answers to coding agents instead of its own: see Turn.
	Turns []answer.Turn
	// PromptTokensDetails adds prompt_tokens_details.cached_tokens to usage.
	PromptTokensDetails bool
	// StrictPrefill records a violation for whatever a good proxy would not
	// send to an engine in its role; see Server.Violations.
	StrictPrefill bool
	// ScaleOut is vLLM's --enable-scale-out: there is /inference/v1/generate.
	ScaleOut bool
	// DevMode is vLLM's VLLM_SERVER_DEV_MODE=1: there are /is_sleeping and, since 0.23, /is_paused.
	DevMode bool
	// DisableLogStats is vLLM's --disable-log-stats: its metrics have no samples of the core.
	DisableLogStats bool
	// StoreResponses is vLLM's VLLM_ENABLE_RESPONSES_API_STORE: what /v1/responses
	// answers is stored until this life of the engine ends.
	StoreResponses bool
	// RecordLimit bounds the record of requests, default 1024; RecordNone
	// keeps none. Bodies are bounded by 64 MiB together as well.
	RecordLimit int
	// Journal receives the arrival and the end of each request that generates; nil keeps none.
	Journal *Journal
	// Admin serves /fake/faults, /fake/core and /fake/state.
	Admin bool
	// IdleTimeout closes idle connections, default 5 s as uvicorn does.
	IdleTimeout time.Duration
	// Log gets warnings where vLLM would log one; nil discards them.
	Log logrus.FieldLogger
}

// ErrOptions is wrapped by every complaint about options.
var ErrOptions = errors.New("invalid options")

func (o Options) withDefaults() (Options, error) {
	o.Addr = cmp.Or(o.Addr, "127.0.0.1:0")
	host, _, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return o, fmt.Errorf("%w: address %q: %w", ErrOptions, o.Addr, err)
	}
	if err := o.fillKinds(); err != nil {
		return o, err
	}
	if len(o.Models) == 0 {
		o.Models = []string{"fake-model"}
	}
	o.Version = cmp.Or(o.Version, "0.24.0")
	if err := o.fillSizes(); err != nil {
		return o, err
	}
	anyPort := net.JoinHostPort(host, "0")
	o.SideChannelAddr, o.BootstrapAddr = cmp.Or(o.SideChannelAddr, anyPort), cmp.Or(o.BootstrapAddr, anyPort)
	o.KVLease, o.TransferTimeout = cmp.Or(o.KVLease, 30*time.Second), cmp.Or(o.TransferTimeout, 480*time.Second)
	o.PingInterval, o.TPSize = cmp.Or(o.PingInterval, connector.PingInterval), cmp.Or(o.TPSize, 1)
	if err := o.fillRanks(host); err != nil {
		return o, err
	}
	o.RecordLimit, o.IdleTimeout = cmp.Or(o.RecordLimit, 1024), cmp.Or(o.IdleTimeout, 5*time.Second)
	if o.Shared == nil {
		o.Shared = NewShared()
	}
	if o.Log == nil {
		log := logrus.New()
		log.SetOutput(io.Discard)
		o.Log = log
	}
	return o, nil
}

// fillKinds checks what is one of some words, and the turns.
func (o *Options) fillKinds() error {
	o.Mode = cmp.Or(o.Mode, Plain)
	moriio := o.Mode == MoRIIORead || o.Mode == MoRIIOWrite
	switch {
	case !slices.Contains([]Role{RoleBoth, RolePrefill, RoleDecode}, o.Role):
		return fmt.Errorf("%w: role %q: use \"prefill\", \"decode\" or \"\"", ErrOptions, o.Role)
	case !slices.Contains([]Mode{Plain, NIXL, NIXLPush, Ascend, P2P, Mooncake, LMCache, MoRIIORead, MoRIIOWrite}, o.Mode):
		return fmt.Errorf("%w: mode %q: use \"plain\", \"nixl\", \"nixl_push\", \"ascend\", \"p2p\", \"mooncake\", \"lmcache\", \"moriio_read\" or \"moriio_write\"", ErrOptions, o.Mode)
	case moriio && o.Role == RoleBoth:
		return fmt.Errorf("%w: mode %s needs a role", ErrOptions, o.Mode)
	case !slices.Contains([]string{"", "qwen3", "deepseek_r1"}, o.ReasoningParser) || !slices.Contains([]string{"", "hermes"}, o.ToolParser):
		return fmt.Errorf("%w: parsers %q and %q: use \"qwen3\" or \"deepseek_r1\", and \"hermes\"", ErrOptions, o.ReasoningParser, o.ToolParser)
	case moriio:
		o.TransferTimeout = cmp.Or(o.TransferTimeout, 120*time.Second) // recv_abort_timeout
	}
	if err := answer.CheckTurns(o.Turns); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return nil
}

// fillSizes checks sizes, rates and times, and that a prompt has room in the cache.
func (o *Options) fillSizes() error {
	if min(o.BlockSize, o.CacheBlocks, o.ChunkTokens, o.ParsedWords, o.MaxModelLen, o.MaxRunning) < 0 || min(o.PrefillRate, o.LoadRate) < 0 ||
		min(o.ITLPerRequest, o.TTFT, o.ITL, o.KVLease, o.TransferTimeout) < 0 {
		return fmt.Errorf("%w: sizes, rates, times and limits cannot be negative", ErrOptions)
	}
	o.BlockSize, o.ChunkTokens = cmp.Or(o.BlockSize, kvcache.DefaultBlockSize), cmp.Or(o.ChunkTokens, 2048)
	room := o.BlockSize * o.CacheBlocks
	if room == 0 {
		room = math.MaxInt
	}
	o.MaxModelLen = cmp.Or(o.MaxModelLen, min(1<<20, room))
	switch {
	case o.KVEvents != nil && o.KVEvents.Enabled && o.CacheBlocks == 0:
		return fmt.Errorf("%w: KV events of an engine without a limited KV cache", ErrOptions)
	case room < o.MaxModelLen:
		return fmt.Errorf("%w: a KV cache of %d tokens is too small for a model length of %d", ErrOptions, room, o.MaxModelLen)
	}
	return nil
}

// fillRanks checks how many ranks there are, and has an alloc port for each.
func (o *Options) fillRanks(host string) error {
	o.DPSize, o.Ranks = cmp.Or(o.DPSize, 1), cmp.Or(o.Ranks, 1)
	if o.DPSize < 0 || o.DPSize > 1 && (o.KVEvents != nil || o.Mode != Plain && !o.Mode.AnswersParams()) {
		return fmt.Errorf("%w: %d data-parallel ranks: more than one is for plain, nixl, nixl_push and ascend without KV events", ErrOptions, o.DPSize)
	}
	if o.Ranks < 0 || o.AllocAddrs != nil && len(o.AllocAddrs) != o.Ranks {
		return fmt.Errorf("%w: %d ranks and %d addresses for them", ErrOptions, o.Ranks, len(o.AllocAddrs))
	}
	for o.Mode == LMCache && len(o.AllocAddrs) < o.Ranks {
		o.AllocAddrs = append(o.AllocAddrs, net.JoinHostPort(host, "0"))
	}
	return nil
}

// connector is what of them a connector needs.
func (o *Options) connector() connector.Config {
	return connector.Config{
		Mode: o.Mode, Role: o.Role, Shared: o.Shared, Log: o.Log,
		Version: o.Version, RewrittenParams: o.RewrittenParams, FixedID: o.EngineID != "",
		Bidirectional: o.Bidirectional, Lease: o.KVLease, TransferTimeout: o.TransferTimeout,
		SideChannelAddr: o.SideChannelAddr, SideChannelHost: o.SideChannelHost, TPSize: o.TPSize, Ranks: o.Ranks,
		NotifyAddr: o.NotifyAddr, PingTo: o.PingTo, PingInterval: o.PingInterval, PingOld: o.PingOld,
	}
}

// tokenizer is what an engine makes of text.
func (o *Options) tokenizer() func(dst []int, text string) []int {
	if o.FineTokens {
		return model.AppendFine
	}
	return model.AppendTokens
}

// model is the model of an engine.
func (o *Options) model() answer.Model {
	return answer.Model{Split: o.SplitCharacters, Reasoning: o.ReasoningParser, Tools: o.ToolParser, Words: o.ParsedWords}
}

// render makes the prompts of a request: of texts, of messages, or of the ids that came with those.
func (o *Options) render(p *request.Request) error {
	p.Tokenize, p.TruncatesToOne = o.tokenizer(), connector.Minor(o.Version) >= 32
	for i, text := range p.PromptText {
		if o.FineTokens && text != "" { // else it came as ids
			p.Prompts[i] = model.TokenizeFine(text)
		}
	}
	if !p.Chat {
		return nil
	}
	if p.API == request.Chat && connector.Minor(o.Version) >= 31 {
		ids, err := p.TakePromptIDs()
		if err != nil {
			return err
		}
		if ids != nil {
			p.Prompts = [][]int{ids}
			return nil
		}
	}
	return p.Render()
}

// Names of package connector, so that users of this package need only one import.
type (
	// Role is the role of an engine.
	Role = connector.Role
	// Mode is the KV transfer of an engine.
	Mode = connector.Mode
	// NoticePlan has the notifications of a prefill engine.
	NoticePlan = connector.NoticePlan
)

// The roles and modes.
const (
	RoleBoth    = connector.RoleBoth
	RolePrefill = connector.RolePrefill
	RoleDecode  = connector.RoleDecode

	Plain       = connector.Plain
	NIXL        = connector.NIXL
	NIXLPush    = connector.NIXLPush
	Ascend      = connector.Ascend
	P2P         = connector.P2P
	Mooncake    = connector.Mooncake
	MoRIIORead  = connector.MoRIIORead
	MoRIIOWrite = connector.MoRIIOWrite
	LMCache     = connector.LMCache
)

// Shared is the KV pool of the engines of one process in plain mode.
type Shared = transfer.Shared

// NewShared returns an empty Shared.
func NewShared() *Shared { return transfer.NewShared() }

// Names of package answer.
type (
	// Turn is a scripted answer of the model.
	Turn = answer.Turn
	// ToolCall is a call in a scripted answer.
	ToolCall = answer.ToolCall
)

// ReadTurns reads a JSON list of turns.
func ReadTurns(r io.Reader) ([]Turn, error) { return answer.ReadTurns(r) }

// KVEvents is vLLM's --kv-events-config.
type KVEvents = kvevents.Config

// ParseKVEvents reads the JSON of --kv-events-config.
func ParseKVEvents(text string) (*KVEvents, error) {
	k, err := kvevents.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%w: --kv-events-config: %w", ErrOptions, err)
	}
	return k, nil
}
