package relay

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// HideHandover removes from an answer what it says about KV transfers inside the fleet.
// Since vLLM 0.33 the last chunks of streams have it, too (its serving.py of chat and
// completions; TestDecodeHandsOver).
type HideHandover openai.Kind

// Whole implements connector.Rewriter.
func (k HideHandover) Whole(body []byte) []byte {
	if !response.MayTellHandover(body) {
		return body
	}
	return response.HideHandover(openai.Kind(k), body)
}

// Events implements connector.Rewriter.
func (k HideHandover) Events(batch []byte) []byte {
	if !response.MayTellHandover(batch) {
		return batch
	}
	return eachEvent(batch, k.Whole)
}
