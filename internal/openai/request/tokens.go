package request

import (
	"github.com/pdmesh/pdmesh/internal/openai"
)

// TokensIdentifyCache reports whether the tokens of the prompt determine the KV cache of a request without
// media, and an engine can return them. With a cache salt they do not; only two routes return them.
func (r *Request) TokensIdentifyCache() bool {
	return (r.Kind == openai.Chat || r.Kind == openai.Completion) && r.last[FieldCacheSalt] == 0
}

// MayTruncate reports whether an engine with a context of maxModelLen tokens, 0 if unknown, may truncate the
// prompt because it and the answer do not fit. The text of a token has at least one byte.
func (r *Request) MayTruncate(maxModelLen int) bool {
	switch r.Kind {
	case openai.Responses:
		if raw := r.Raw(FieldTruncation); raw == nil || string(raw) == `"disabled"` {
			return false
		}
	case openai.Completion, openai.Chat:
		if n, _, _ := r.integer(FieldTruncatePrompt); n >= 0 { // the engine refuses other types
			return false
		}
	case openai.Messages, openai.Generate, openai.Other:
		return false
	}
	return maxModelLen == 0 || int64(len(r.Body))+r.MaxTokens > int64(maxModelLen) || r.Media()
}
