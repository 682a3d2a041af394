package connector

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// nixl is vLLM's NixlConnector in pull mode (vLLM's kv_connector/v1/nixl). Prefill's
// answer has kv_transfer_params, which the proxy copies to decode without reading them.
type nixl struct{ base }

// nixlPrefill asks the prefill instance to keep the blocks for a remote decode. Only the
// two booleans have a meaning; engines expect all six members.
const nixlPrefill = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func (nixl) Name() string { return "nixl" }

// Unfit: before vLLM 0.21, prefill offers a KV transfer only if it ends by length. A
// request to /v1/messages cannot ensure that.
func (nixl) Unfit(k openai.Kind, p Pair) string {
	why := tooOld(k, p)
	if why == "" && k == openai.Messages && older(p.Prefill, release{0, 21}) {
		why = bypass.MessagesNeedLength
	}
	return why
}

func (nixl) Prefill(r *request.Request, p Pair) Leg {
	return Leg{Body: prefillBody(r, p, nixlPrefill)}
}

func (nixl) TransferParams(answer []byte) (TransferParams, error) {
	params, err := jsonscan.TopLevel(answer, "kv_transfer_params")
	if err != nil {
		return TransferParams{}, fmt.Errorf("prefill answer: %w", err)
	}
	if len(bytes.Trim(params, "{} \t\r\n")) == 0 { // an object with nothing in it
		return TransferParams{}, nil
	}
	return TransferParams{Params: params}, nil
}

func (nixl) Decode(r *request.Request, p Pair, h TransferParams) Leg {
	e := decodeEdit(r, p)
	if !h.Empty() {
		e.SetBytes(request.FieldKVTransferParams, h.Params)
	}
	return Leg{Body: e.Body()}
}

// nixlOldLease is the default of VLLM_NIXL_ABORT_REQUEST_TIMEOUT, before vLLM 0.22.
const nixlOldLease = 480 * time.Second

// Terms: engines compare a hash over their versions (vLLM's kv_connector/v1/nixl/metadata.py),
// so every request through a pair of two versions fails. Since vLLM 0.21, a decode engine
// that refuses a request makes prefill free the blocks (_with_kv_transfer_rejection_cleanup
// in entrypoints/generate/base/serving.py). Since 0.22 a decode engine renews the lease of each
// request that it has admitted, every sixth of the lease, by two thirds of it.
func (nixl) Terms(in *instance.Instance) Terms {
	t := Terms{Build: in.Record.Version, Lease: lease(in), RefusalSpends: !older(in, release{0, 21}), Renews: !older(in, release{0, 22})}
	if t.Lease == 0 && older(in, release{0, 22}) {
		t.Lease = nixlOldLease
	}
	return t
}

// nixlPush is vLLM's NixlPushConnector: prefill writes into the blocks of decode. The
// legs are the same as in pull mode, one after the other, because only prefill's answer
// names prefill reliably. Prefill finds the request of decode by the X-Request-Id and the
// kind of the route, which are the same on both legs (vLLM's kv_connector/v1/nixl/push_scheduler.py).
type nixlPush struct{ nixl }

func (nixlPush) Name() string { return "nixl_push" }

// Lacks: prefill cannot write into a decode engine with several pipeline stages.
func (nixlPush) Lacks(in *instance.Instance) error {
	if in.Role == instance.Decode && in.Record.PPSize > 1 {
		return errors.New("its engine is pipeline-parallel, which decode cannot be in push mode")
	}
	return nil
}

// Unfit: on /v1/responses vLLM takes the id of a request from the body or makes one, not
// from X-Request-Id. Prefill would not find the request of decode.
func (n nixlPush) Unfit(k openai.Kind, p Pair) string {
	if k == openai.Responses {
		return bypass.ResponsesOwnID
	}
	return n.nixl.Unfit(k, p)
}
