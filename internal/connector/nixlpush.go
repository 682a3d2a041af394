package connector

import (
	"errors"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// nixlPush is vLLM's NixlPushConnector (protocols.md 2.6): prefill writes into the
// blocks of decode. The legs say the same as in pull mode, one after the other, as
// the prefill answer is what names prefill for certain. Decode is found by the text of
// X-Request-Id and the kind of the route, which are the same on both legs.
type nixlPush struct{ nixl }

func (nixlPush) Name() string { return "nixl_push" }

// Lacks: a decode engine in several pipeline stages cannot be written to.
func (nixlPush) Lacks(in *instance.Instance) error {
	if in.Role == instance.Decode && in.Record.PPSize > 1 {
		return errors.New("its engine is pipeline-parallel, which decode cannot be in push mode")
	}
	return nil
}

// Unfit: /v1/responses names its requests by itself, so the legs would not meet
// (protocol rule R6).
func (n nixlPush) Unfit(k openai.Kind, p Pair) string {
	if k == openai.Responses {
		return alone.ResponsesOwnID
	}
	return n.nixl.Unfit(k, p)
}
