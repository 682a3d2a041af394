// Package connector is how KV caches travel between engines: one file for each connector of
// vLLM, behind one interface.
//
//	Begin ──▶ queue ──▶ Await ──▶ prefill ──▶ Prefilled ──▶ decode ──▶ End ──▶ Drop
//
// A Connector lasts as long as one incarnation of its engine: it has the channels that other
// engines ask by. A Leg is what it does for one request.
package connector

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// HeaderRank is the header that chooses a data-parallel rank.
const HeaderRank = "X-data-parallel-rank"

// Role is what the operator of an engine thinks it is for. Like vLLM the
// engine serves any request in any role; the role changes what is counted.
type Role string

// The roles.
const (
	RoleBoth    Role = ""
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

// Connector is that of one life of an engine. What is asked of a rank counts from 0.
type Connector interface {
	// Start brings up what other engines ask this one by.
	Start(ctx context.Context) error
	// Announce begins to register the engine, which serves by now.
	Announce() error
	// Close ends what Start and Announce began. It does not wait for loads that run.
	Close()

	// Leg is what happens to one request.
	Leg(r *Request) Leg
	// Refuse releases what the kv_transfer_params of a refused request name.
	Refuse(ctx context.Context, kv []byte)
	// Inspect returns what vLLM takes of a request but no good proxy sends, "" for nothing.
	Inspect(r *Request) string

	// Transfers counts what a rank keeps for decodes. It releases the blocks that no decode fetched in time.
	Transfers(rank int) Transfers
	// Port is that of a rank's side channel, 0 for none.
	Port(rank int) int
}

// Leg is one request's way through a connector. The methods are called in this order, by one
// goroutine; but for Drop each may be left out by a request that ends early.
type Leg interface {
	// Begin is when the request comes in, before it is queued. The error is the answer of
	// an engine that has died of it.
	Begin(r *Request) *pydantic.Error
	// Await is before the prompts are computed: it waits until what is fetched is there, or
	// known not to come. false means that the client left or the engine died.
	Await(r *Request) bool
	// Prefilled is when the prompts are computed.
	Prefilled(r *Request)
	// End is when the answer is generated. answered reports whether it can carry
	// kv_transfer_params, which then are r.TransferParams; a stream may call it twice.
	End(r *Request, finish string, answered bool)
	// Drop is when the request is over, however that came.
	Drop(r *Request)
}

// Request is one request as its connector sees it. The connector says in it what was loaded:
// Cached, WrongKV, Failed.
type Request struct {
	*answer.Reply
	HTTP   *http.Request
	Engine *engine.Request
	NoKV   bool // a fault suppresses the transfer params
	Failed bool // the KV load failed
}

// Transfers are prefills that wait for their decode, those that did so in vain, and how many
// decodes came for blocks, of the connectors that know their legs by transfer_id.
type Transfers struct{ Waiting, Expired, Pulls int64 }

// Addresses are host:port of what has the same place in every life. Start sets the ports that it chose.
type Addresses struct {
	Bootstrap string   // of a Mooncake producer
	Side      string   // of a MoRI-IO engine's side channel
	Alloc     []string // of an LMCache decode, one for each rank
}

// Config describes a connector.
type Config struct {
	Mode   Mode
	Role   Role
	Shared *transfer.Shared
	Count  *counters.Counters
	Log    logrus.FieldLogger

	Version         string // of the engine
	FixedID         bool   // engine ids are the same in every life
	RewrittenParams bool
	Bidirectional   bool
	Lease           time.Duration
	TransferTimeout time.Duration

	SideChannelAddr string
	SideChannelHost string // "" is that of the address
	TPSize          int
	Ranks           int
	NotifyAddr      string
	PingTo          string
	PingInterval    time.Duration
	PingOld         bool
	Controls        *Controls
}

// Life is the life of the engine that a connector is part of.
type Life struct {
	EngineIDs []string // one for each rank
	HTTP      string   // host:port that the engine serves at
	At        *Addresses
	Done      <-chan struct{} // closed when the life ends
	Work      *sync.WaitGroup // of what goes on when a request is over
	Crash     func()          // ends the engine
}

// New makes the connector of a mode, which is not started yet.
func New(conf Config, life Life) Connector {
	b := base{Config: conf, Life: life}
	switch conf.Mode {
	case NIXL, NIXLPush, Ascend:
		return &nixl{ledgers: newLedgers(b)}
	case P2P:
		return &p2p{ledgers: newLedgers(b)}
	case Mooncake:
		return &mooncake{transferring: transferring{base: b}}
	case MoRIIORead, MoRIIOWrite:
		return &moriio{transferring: transferring{base: b}}
	case LMCache:
		return &lmcache{base: b}
	case Plain:
	}
	return &plain{base: b}
}

// base is what all connectors have, and what one does that does nothing.
type base struct {
	Config
	Life
}

func (b *base) Start(context.Context) error    { return nil }
func (b *base) Announce() error                { return nil }
func (b *base) Close()                         {}
func (b *base) Refuse(context.Context, []byte) {}
func (b *base) Inspect(*Request) string        { return "" }
func (b *base) Transfers(int) (none Transfers) { return none }
func (b *base) Port(int) int                   { return 0 }

// What is wrong with a leg.
const (
	notPrefill = "kv_transfer_params has not the prefill form"
	isPrefill  = "kv_transfer_params has the prefill form"
)

// quiet is a leg that does nothing.
type quiet struct{}

func (quiet) Begin(*Request) *pydantic.Error { return nil }
func (quiet) Await(*Request) bool            { return true }
func (quiet) Prefilled(*Request)             {}
func (quiet) End(*Request, string, bool)     {}
func (quiet) Drop(*Request)                  {}

// promptHash identifies a prompt among engines.
func promptHash(ids []int) uint64 {
	g := model.NewGenerator(ids, 0)
	return g.Hash()
}

// refuse notes a load that has failed; the kv_load_failure_policy is fail.
func (b *base) refuse(r *Request, err error) {
	if !errors.Is(err, context.Canceled) { // else the client has left
		b.Count.Refuse(r.ID, err)
	}
	r.Failed = true
}

// mislead notes that a request reads the blocks of another prompt.
func (b *base) mislead(r *Request, why string) {
	r.WrongKV = true
	b.Count.Mislead(r.ID, why)
}

func (b *base) countLocal(r *Request) { b.Count.LocalPrefills.Add(int64(len(r.Prompts))) }

// loaded notes that the first prompt is there.
func (b *base) loaded(r *Request) {
	b.Count.TransfersLoaded.Add(1)
	r.Cached = len(r.Prompts[0]) - 1
}

func (b *base) violate(r *Request, what string) {
	b.Count.Violate("%s engine, %s: %s", b.Role, r.ID, what)
}

func (b *base) reused(r *Request, transferID, why string) {
	b.Count.Reuse("%s engine, %s: transfer_id %q: %s", b.Role, r.ID, transferID, why)
}

// crash is the end of an engine whose connector fails an assertion.
func (b *base) crash() *pydantic.Error {
	b.Count.Crashes.Add(1)
	b.Crash()
	return pydantic.InternalError()
}

// advertised is where other engines reach a side channel.
func (b *base) advertised(side *transfer.Side) (host string, port int) {
	host = b.SideChannelHost
	if host == "" {
		host, _, _ = net.SplitHostPort(side.Addr())
	}
	return host, side.Port()
}

// Controls are what a test changes of connectors while engines live. The zero value
// changes nothing.
type Controls struct {
	muted atomic.Bool

	mu     sync.Mutex // guards notice
	notice NoticePlan
}

// NoticePlan is what becomes of the notifications of an LMCache prefill. The zero value
// sends each once, before the answer.
type NoticePlan struct {
	After bool // the transfer runs after the HTTP answer
	// Listed is called when a rank's chunks are listed and not written yet.
	Listed func(rank int)
	// Times is how often a rank notifies, where it is not once.
	Times func(rank int) int
}

// SetNotices changes what becomes of the notifications from now on.
func (c *Controls) SetNotices(p NoticePlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notice = p
}

func (c *Controls) notices() NoticePlan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notice
}

// Mute stops the pings of MoRI-IO engines, and starts them again.
func (c *Controls) Mute(mute bool) { c.muted.Store(mute) }

// plain is the KV pool of plain mode: prefill stores what decode finds.
type plain struct {
	base
	quiet
}

// Leg has no state.
func (p *plain) Leg(*Request) Leg { return p }

func (p *plain) Begin(r *Request) *pydantic.Error {
	for _, ids := range r.Prompts {
		if p.Shared.Has(promptHash(ids)) {
			r.Cached += (len(ids) - 1) / kvcache.DefaultBlockSize * kvcache.DefaultBlockSize
			continue
		}
		if p.Role != RolePrefill {
			p.Count.LocalPrefills.Add(1)
		}
	}
	return nil
}

func (p *plain) Prefilled(r *Request) {
	for _, ids := range r.Prompts {
		p.Shared.Store(promptHash(ids))
	}
}

func (p *plain) Inspect(r *Request) string {
	if r.KV != nil {
		return "kv_transfer_params in plain mode"
	}
	return ""
}

// Mode is how KV caches travel between engines.
type Mode string

// The modes.
const (
	// Plain engines share a KV pool and need nothing in the request.
	Plain Mode = "plain"
	// NIXL engines hand over by kv_transfer_params, pull mode.
	NIXL Mode = "nixl"
	// NIXLPush engines hand over by kv_transfer_params, push mode: prefill finds the
	// request of decode by its id.
	NIXLPush Mode = "nixl_push"
	// Ascend engines have vllm-ascend's MooncakeConnectorV1.
	Ascend Mode = "ascend"
	// P2P engines have an OffloadingConnector with a tier of type p2p: decode fetches
	// by kv_request_id from the side channel of prefill.
	P2P Mode = "p2p"
	// Mooncake engines transfer by vLLM's own MooncakeConnector: both legs carry a
	// transfer_id, and decode finds prefill through its bootstrap server. The role
	// is kv_role, and a leg for the other one kills the engine.
	Mooncake Mode = "mooncake"
	// MoRIIORead and MoRIIOWrite engines transfer by vLLM's MoRIIOConnector in one of
	// its modes, and register themselves by ZeroMQ.
	MoRIIORead  Mode = "moriio_read"
	MoRIIOWrite Mode = "moriio_write"
	// LMCache engines hand over by LMCache's PD backend: prefill writes into the
	// buffer of a decode that its leg names, and notifies by ZeroMQ.
	LMCache Mode = "lmcache"
)

// AnswersParams reports whether a prefill in this mode answers with kv_transfer_params.
func (m Mode) AnswersParams() bool { return m == NIXL || m == NIXLPush || m == Ascend }

// membersOf returns the members of kv_transfer_params, nil for nil.
func membersOf(raw []byte) (map[string]json.RawMessage, error) {
	if raw == nil {
		return nil, nil
	}
	return pydantic.Members(raw)
}

// extraField must come back byte for byte: a proxy that decodes and encodes
// the object turns 1.0 into 1, or é into its escape or back.
const (
	extraField = "x_transfer_hints"
	extraValue = `{"layout":"HND","ratio":1.0,"note":"caf\u00e9 <&> é","big":18446744073709551615}`
	tokenField = "remote_kv_token" //nolint:gosec // the name of a JSON field, no credential
)

// NewToken is a random integer between 2^53 and 2^63, odd, so that a float64
// always spoils it.
func NewToken() string {
	return strconv.FormatUint(1<<62+rand.Uint64N(1<<61)|1, 10)
}
