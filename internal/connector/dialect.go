// Package connector holds the KV-transfer dialects: pure functions that say what
// each leg of a pair carries, and in which order the legs run.
//
//	Request, Pair ──Prefill──▶ leg ──▶ P ──answer──▶ Handover
//	Request, Pair, Handover ──Decode──▶ leg ──▶ D
//
// They do no I/O. A dialect never re-encodes what an engine said: hand-over
// parameters travel as the bytes that the prefill instance wrote.
//
// A new dialect is one file, one line in registry.go (another one in classes.go where
// vLLM has a class of its own for it), and its folder in testdata.
package connector

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// Dialect is how a pair of engines is told to hand over KV. Implementations have
// no state and may be shared.
type Dialect interface { //nolint:interfacebloat // what a pair has to be told, each a short answer
	// Name is the short name, as in --connector and in instance records.
	Name() string
	// Flow is the order in which the legs run.
	Flow() Flow
	// Lacks tells what the record of an instance lacks for this dialect, nil if
	// nothing: an instance that lacks something is not picked.
	Lacks(in *instance.Instance) error
	// Unfit tells why a request of a kind cannot go through a pair, "" if it can. It
	// is asked again when Pair.Decode, nil at first in a sequential flow, is chosen.
	Unfit(k openai.Kind, p Pair) (reason string)
	// Prefill is the leg that makes an instance compute the prompt's KV cache.
	// Pair.Decode is nil where the flow chooses it later.
	Prefill(r *request.Request, p Pair) Leg
	// Handover takes from a prefill answer what the decode leg needs. The error
	// tells that the answer is not what such an engine sends; an answer that
	// merely offers no transfer gives the zero Handover.
	Handover(answer []byte) (Handover, error)
	// Decode is the leg that answers the client. In a sequential flow the zero
	// Handover makes the decode instance compute the prompt itself; in a
	// concurrent one there is no other, as all stands in the pair.
	Decode(r *request.Request, p Pair, h Handover) Leg
	// SharesPool tells that KV lies in a pool found by content: any decode
	// instance may use it, any number of times. Otherwise a hand-over is good
	// for one decode instance that takes it.
	SharesPool() bool
	// Terms are what a flow must know of an instance.
	Terms(in *instance.Instance) Terms
	// NeedsPrefill tells that a decode instance which is sent a request without a
	// hand-over answers it with the wrong text: it is never sent one.
	NeedsPrefill() bool
	// Rewriter changes the decode instance's answer on its way to the client;
	// nil: it goes through as it came.
	Rewriter(h Handover) Rewriter
}

// Flow is the order of the two legs.
type Flow uint8

// The flows.
const (
	// Sequential: prefill, then decode with what prefill has handed over.
	Sequential Flow = iota
	// Concurrent: both at once. When one fails the other is aborted, and another
	// pair is tried.
	Concurrent
	// DecodeFirst: decode, which asks the proxy for the prefill.
	DecodeFirst
	// Notified: prefill, then decode when every rank of prefill has said that the KV
	// is there. Each attempt has a pair of its own: the KV goes to one decode instance,
	// which is chosen before prefill begins.
	Notified
)

func (f Flow) String() string {
	return [...]string{"sequential", "concurrent", "decode_first", "notified"}[f]
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
	// TokenIDs has prefill tell the tokens of the prompt.
	TokenIDs bool
}

// Leg is what one engine is sent.
type Leg struct {
	Body splice.Body
	// Header are fields of this leg alone. A client's own of the same name does
	// not get through.
	Header []Field
	// ID is the X-Request-Id where the dialect needs one of its own; "" means
	// Pair.ID.
	ID string
	// Path is where the engine wants it; "" means the path of the client's request.
	Path string
	// Awaits are, on the prefill leg of the flow Notified, the notifications before
	// which decode must not begin.
	Awaits Notices
}

// Notices are the notifications that one prefill gives.
type Notices struct {
	ID    string // what they say they are about
	Ranks int    // how many senders give one each
}

// Field is one header field.
type Field struct{ Name, Value string }

// Handover is what one prefill gives to one decode; the zero value is "nothing".
type Handover struct {
	// Params is the raw JSON of kv_transfer_params; nobody may change it.
	Params []byte
}

// Empty tells that the prefill offered no transfer.
func (h Handover) Empty() bool { return len(h.Params) == 0 }

// Rewriter changes an answer on its way to the client. It may give back the bytes
// it got.
type Rewriter interface {
	// Whole changes an answer that is no stream.
	Whole(body []byte) []byte
	// Events changes one or more complete server-sent events.
	Events(batch []byte) []byte
}

// Alone is the leg of a decode instance that computes the prompt itself, in any
// dialect. Of the pair it needs Decode, its rank and Key.
func Alone(r *request.Request, p Pair) Leg {
	return Leg{Body: decodeEdit(r, p).Body(), Header: Pinned(p.Decode, p.DecodeRank)}
}

// Terms are what a flow must know of an instance beside its legs. The zero value asks
// for nothing.
type Terms struct {
	// Build is what both of a pair must have in common, "" for one that goes with
	// anybody.
	Build string
	// Blocks is the size of KV blocks that both of a pair must have, in tokens; 0 for one
	// that goes with anybody, or does not say.
	Blocks int
	// Lease is how long prefill keeps what it has handed over until decode comes for
	// it; 0 if that is not known.
	Lease time.Duration
	// RefusalSpends tells that an instance which refuses a decode leg (4xx, 503)
	// may have prefill free its blocks.
	RefusalSpends bool
	// GivesUp is the stop_reason by which decode says that it has given an answer up,
	// "" if it has none.
	GivesUp string
	// Bootstrap is host:port of the server that tells the engine ids of the present
	// life, by which decode is sent to prefill; "" if the legs need none.
	Bootstrap string
}

// lease is what the record of an instance states, 0 if nothing.
func lease(in *instance.Instance) time.Duration {
	return time.Duration(in.Record.KVLease) * time.Second
}
