package request

import (
	"github.com/pdmesh/pdmesh/internal/openai"
)

// TokensTell reports whether the tokens of the prompt determine the KV cache of a request
// without media, which is not so with a cache salt, and an engine can return these tokens,
// which only two of the routes support.
func (r *Request) TokensTell() bool {
	return (r.Kind == openai.Chat || r.Kind == openai.Completion) && r.last[FieldCacheSalt] == 0
}
