package connector

import (
	"fmt"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// nixl is vLLM's NixlConnector in pull mode: the prefill answer carries
// kv_transfer_params, which go to the decode instance unread (protocols.md 2).
type nixl struct{}

// nixlPrefill asks the prefill instance to keep the blocks for a remote
// decode. Only the two booleans mean something; engines expect all six.
const nixlPrefill = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func (nixl) Name() string                   { return "nixl" }
func (nixl) Flow() Flow                     { return Sequential }
func (nixl) Lacks(*instance.Instance) error { return nil }
func (nixl) SharesPool() bool               { return false }
func (nixl) Rewriter(Handover) Rewriter     { return nil }
func (nixl) NeedsPrefill() bool             { return false }

// Unfit: before vLLM 0.21 nothing is handed over by a prefill whose only token ends
// the answer, and /v1/messages cannot forbid that.
func (nixl) Unfit(k openai.Kind, p Pair) string {
	why := tooOld(k, p)
	if why == "" && k == openai.Messages && older(p.Prefill, release{0, 21}) {
		why = messagesNeedLength
	}
	return why
}

func (nixl) Prefill(r *openai.Request, _ Pair) Leg {
	e := r.NewEdit()
	prefillEdit(e)
	e.Set(openai.FieldKVTransferParams, nixlPrefill)
	return Leg{Body: e.Body()}
}

func (nixl) Handover(answer []byte) (Handover, error) {
	params, err := openai.TopLevel(answer, "kv_transfer_params")
	if err != nil {
		return Handover{}, fmt.Errorf("prefill answer: %w", err)
	}
	return Handover{Params: params}, nil
}

func (nixl) Decode(r *openai.Request, _ Pair, h Handover) Leg {
	e := r.NewEdit()
	if !h.Empty() {
		e.SetBytes(openai.FieldKVTransferParams, h.Params)
	}
	return Leg{Body: e.Body()}
}
