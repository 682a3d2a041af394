package relay

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// HideTransferParams removes the transfer params from an answer. Since vLLM 0.33 the last
// chunks of streams have them, too (its serving.py of chat and
// completions; TestDecodeTransferParams_Hidden).
type HideTransferParams openai.Kind

// Affects implements Rewriter.
func (HideTransferParams) Affects(b []byte) bool { return response.MayHaveTransferParams(b) }

// Rewrite implements Rewriter.
func (k HideTransferParams) Rewrite(b []byte) []byte {
	return response.HideTransferParams(openai.Kind(k), b)
}
