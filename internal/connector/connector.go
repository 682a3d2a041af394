// Package connector holds the KV-transfer dialects: pure functions that say
// how a request changes for the prefill leg, what to take from its answer,
// and how the request changes for the decode leg.
//
//	Request ──Prefill──▶ prefill body ──▶ P ──answer──▶ Handover ──Decode──▶ decode body ──▶ D
//
// They do no I/O. A dialect never re-encodes what an engine said: hand-over
// parameters travel as the bytes that the prefill instance wrote.
package connector

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// Connector is one dialect. Implementations have no state and may be shared.
type Connector interface {
	// Name is the short name, as in --connector and in instance records.
	Name() string
	// Prefill is the body that makes an instance compute the prompt's KV cache.
	Prefill(r *openai.Request) openai.Body
	// Handover takes from a prefill answer what the decode leg needs. The
	// error tells that the answer is not what such an engine sends; an answer
	// that merely offers no transfer gives the zero Handover.
	Handover(answer []byte) (Handover, error)
	// Decode is the body of the decode leg; the zero Handover makes the decode
	// instance compute the prompt itself.
	Decode(r *openai.Request, h Handover) openai.Body
	// SharesPool tells that KV lies in a pool found by content: any decode
	// instance may use it, any number of times. Otherwise a hand-over is good
	// for one decode instance that takes it.
	SharesPool() bool
}

// Handover is what one prefill gives to one decode; the zero value is "nothing".
type Handover struct {
	// Params is the raw JSON of kv_transfer_params; nobody may change it.
	Params []byte
}

// Empty tells that the prefill offered no transfer.
func (h Handover) Empty() bool { return len(h.Params) == 0 }

// ErrUnknown is wrapped by New's error.
var ErrUnknown = errors.New("unknown connector")

// Names lists what New accepts, without the aliases.
func Names() []string { return []string{"plain", "nixl"} }

// Canonical gives the short name of a connector as it may stand in a record:
// a short name or vLLM's class name, in any case. The empty name is empty.
func Canonical(name string) (string, error) {
	switch strings.ToLower(name) {
	case "":
		return "", nil
	case "plain":
		return "plain", nil
	case "nixl", "nixlconnector":
		return "nixl", nil
	default:
		return "", fmt.Errorf("%w %q: known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
	}
}

// New gives the dialect of that name; the empty name means plain.
func New(name string) (Connector, error) {
	short, err := Canonical(name)
	if err != nil {
		return nil, err
	}
	if short == "nixl" {
		return nixl{}, nil
	}
	return plain{}, nil
}

// prefillEdit is what every dialect does to the prefill leg (protocol rules R1
// and R1b): one token, not streamed, and finished by length, since several
// engines hand nothing over when the single token ends the answer. The token
// itself is thrown away.
func prefillEdit(e *openai.Edit) {
	e.Set(openai.FieldStream, "false")
	e.Set(openai.FieldMaxTokens, "1")
	e.Replace(openai.FieldMaxCompletionTokens, "1")
	e.Set(openai.FieldMinTokens, "1")
	e.Delete(openai.FieldMinCompletionTokens)
	e.Set(openai.FieldIgnoreEOS, "true")
	e.Delete(openai.FieldStreamOptions)
	e.Delete(openai.FieldStop)
	e.Delete(openai.FieldStopTokenIDs)
}

// plain is the flow for engines that share a KV pool: nothing about the
// transfer is said in HTTP.
type plain struct{}

func (plain) Name() string                      { return "plain" }
func (plain) Handover([]byte) (Handover, error) { return Handover{}, nil }
func (plain) SharesPool() bool                  { return true }
func (plain) Prefill(r *openai.Request) openai.Body {
	e := r.NewEdit()
	prefillEdit(e)
	return e.Body()
}
func (plain) Decode(r *openai.Request, _ Handover) openai.Body {
	return r.NewEdit().Body()
}

// nixl is vLLM's NixlConnector in pull mode: the prefill answer carries
// kv_transfer_params, which go to the decode instance unread.
type nixl struct{}

// nixlPrefill asks the prefill instance to keep the blocks for a remote
// decode. Only the two booleans mean something; engines expect all six.
const nixlPrefill = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func (nixl) Name() string     { return "nixl" }
func (nixl) SharesPool() bool { return false }

func (nixl) Prefill(r *openai.Request) openai.Body {
	e := r.NewEdit()
	prefillEdit(e)
	e.Set(openai.FieldKVTransferParams, nixlPrefill)
	return e.Body()
}

func (nixl) Handover(answer []byte) (Handover, error) {
	params, err := openai.TopLevel(answer, "kv_transfer_params")
	if err != nil {
		return Handover{}, fmt.Errorf("prefill answer: %w", err)
	}
	return Handover{Params: params}, nil
}

func (nixl) Decode(r *openai.Request, h Handover) openai.Body {
	e := r.NewEdit()
	if !h.Empty() {
		e.SetBytes(openai.FieldKVTransferParams, h.Params)
	}
	return e.Body()
}
