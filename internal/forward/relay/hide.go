package relay

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// HideTransferParams removes the transfer params from an answer. Since vLLM 0.33 the last
// chunks of streams have them, too (its serving.py of chat and
// completions; TestDecodeTransferParams_Hidden).
type HideTransferParams openai.Kind

// Whole implements Rewriter.
func (k HideTransferParams) Whole(body []byte) []byte {
	if !response.MayHaveTransferParams(body) {
		return body
	}
	return response.HideTransferParams(openai.Kind(k), body)
}

// Events implements Rewriter.
func (k HideTransferParams) Events(batch []byte) []byte {
	if !response.MayHaveTransferParams(batch) {
		return batch
	}
	return eachEvent(batch, k.Whole)
}
