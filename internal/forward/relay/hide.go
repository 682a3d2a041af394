package relay

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

// HideHandover takes out of an answer what it says about transfers inside the fleet: since
// vLLM 0.33 also the last chunks of streams do (protocol rule R2).
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
