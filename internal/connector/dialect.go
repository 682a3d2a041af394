// Package connector has the KV-transfer dialects: pure functions that return the parameters
// of each leg of a pair, and the order of the legs.
//
//	Request, Pair ──Prefill──▶ leg ──▶ P ──answer──▶ TransferParams
//	Request, Pair, TransferParams ──Decode──▶ leg ──▶ D
//
// They do no I/O. A dialect never encodes transfer params again: decode gets the
// bytes that the prefill instance wrote.
//
// A new dialect is one file, one line in registry.go, a line in classes.go for each class
// of vLLM that uses it, and a folder in testdata.
package connector

import (
	"math"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// Dialect builds the parameters with which a pair of engines transfers KV caches.
// Implementations are stateless and may be shared.
type Dialect interface {
	// Name is the short name, as in --connector and in instance records.
	Name() string
	// Flow is the order in which the legs run.
	Flow() Flow
	// Lacks reports what the record of an instance lacks for this dialect, nil if it lacks
	// nothing. The proxy does not pick an instance that lacks something.
	Lacks(in *instance.Instance) error
	// Unfit reports why a request of a kind cannot go through a pair, "" if it can. In a
	// sequential flow Pair.Decode is nil at first, and Unfit is called again when decode
	// is chosen.
	Unfit(k openai.Kind, p Pair) (reason string)
	// Prefill returns the leg that makes an instance compute the prompt's KV cache.
	// Pair.Decode is nil if the flow chooses it later.
	Prefill(r *request.Request, p Pair) Leg
	// TransferParams extracts the transfer params for the decode leg from prefill's response. If
	// the response offers no transfer, the result is the zero TransferParams. The error means
	// that no engine of this dialect sends such a response.
	TransferParams(answer []byte) (TransferParams, error)
	// Decode returns the leg that answers the client. In a sequential flow, the zero TransferParams
	// makes the decode instance compute the prompt itself. In a concurrent flow, TransferParams
	// is always zero, because the pair has all parameters.
	Decode(r *request.Request, p Pair, h TransferParams) Leg
	// SharesPool reports whether engines share a pool and find KV caches there by content: any
	// decode instance may read one, any number of times. Otherwise one decode instance
	// can read a KV transfer once.
	SharesPool() bool
	// Terms returns the facts about an instance that a flow needs.
	Terms(in *instance.Instance) Terms
	// NeedsPrefill reports whether a decode instance answers a request without a KV transfer with
	// the wrong text. The proxy never sends it such a request.
	NeedsPrefill() bool
}

// Flow is the order of the two legs.
type Flow uint8

// The flows.
const (
	// Sequential: prefill, then decode with the transfer params of prefill.
	Sequential Flow = iota
	// Concurrent: both at the same time. When one fails, the proxy aborts the other and
	// tries another pair.
	Concurrent
	// Notified: prefill, then decode when every rank of prefill has notified that decode
	// has the KV cache. Each attempt has its own pair: the KV cache goes to one decode
	// instance, which is chosen before prefill begins.
	Notified
)

func (f Flow) String() string {
	return [...]string{"sequential", "concurrent", "notified"}[f]
}

// Pair is one attempt at a request: the two targets and the names that link their
// legs.
type Pair struct {
	Prefill, Decode *instance.Instance // nil while not chosen
	// The data-parallel ranks of the two.
	PrefillRank, DecodeRank int
	// ID is the X-Request-Id of both legs: the client's id and a nonce.
	ID string
	// Key is a random text of 32 hexadecimal digits that no other attempt has.
	Key string
	// TokenIDs asks prefill for the tokens of the prompt.
	TokenIDs bool
	// AnswerIDs asks decode for the tokens of prompt and answer.
	AnswerIDs bool
}

// Leg is the request of the proxy to one engine.
type Leg struct {
	Body splice.Body
	// Header are fields of this leg only. They replace fields of the client with the same name.
	Header []Field
	// ID is the X-Request-Id, if the dialect needs its own; "" means Pair.ID.
	ID string
	// Path is the path of the leg; "" means the path of the client's request.
	Path string
	// Awaits are the notifications of a prefill leg, in the flow Notified. Decode must not
	// begin before them.
	Awaits Notices
}

// Notices are the notifications that one prefill sends.
type Notices struct {
	ID    string // the request id in each of them
	Ranks int    // number of ranks; each sends one
}

// Field is one header field.
type Field struct{ Name, Value string }

// TransferParams are the params in prefill's response for one decode leg. The zero value means
// that there is no KV transfer.
type TransferParams struct {
	// Params is the raw JSON of kv_transfer_params. Callers must not change it.
	Params []byte
}

// Empty reports whether the prefill offered no transfer.
func (h TransferParams) Empty() bool { return len(h.Params) == 0 }

// DecodeOnly returns the leg of a decode instance that computes the prompt itself, in any
// dialect. Of the pair it needs Decode, its rank and Key.
func DecodeOnly(r *request.Request, p Pair) Leg {
	return Leg{Body: decodeEdit(r, p).Body(), Header: Pinned(p.Decode, p.DecodeRank)}
}

// Terms are the facts about an instance, besides its legs, that a flow needs. The zero
// value has no conditions.
type Terms struct {
	// Build is the version that both instances of a pair must have in common. An instance
	// with "" can be paired with any.
	Build string
	// Blocks is the size of KV blocks, in tokens, that both instances of a pair must have
	// in common. An instance with 0 can be paired with any.
	Blocks int
	// Lease is how long prefill keeps a KV transfer until decode reads it; 0 if that is not
	// known.
	Lease time.Duration
	// Renews reports whether a running decode engine keeps the KV cache readable: it renews
	// the lease of the requests in its queue, or prefill refuses a late read.
	Renews bool
	// RefusalSpends reports whether an instance which refuses a decode leg (4xx, 503) may make
	// prefill free the blocks.
	RefusalSpends bool
	// GivesUp is the stop_reason with which decode aborts a response, "" if there is none.
	GivesUp string
	// Bootstrap is host:port of the server that has the engine ids of the current process of
	// prefill. Decode needs such an id. "" if the legs need none.
	Bootstrap string
}

// lease returns the lease in the record of an instance, 0 if there is none.
func lease(in *instance.Instance) time.Duration {
	return time.Duration(min(max(0, in.Record.KVLease), math.MaxInt32)) * time.Second
}
