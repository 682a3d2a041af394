package connector

import (
	"errors"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

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
		return alone.ResponsesOwnID
	}
	return n.nixl.Unfit(k, p)
}
