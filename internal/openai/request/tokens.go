package request

import (
	"github.com/pdmesh/pdmesh/internal/openai"
)

// TokensIdentifyCache reports whether the tokens of the prompt determine the KV cache of a request without
// media, and an engine can return them. With a cache salt they do not; only two routes return them.
func (r *Request) TokensIdentifyCache() bool {
	return (r.Kind == openai.Chat || r.Kind == openai.Completion) && r.last[FieldCacheSalt] == 0
}
