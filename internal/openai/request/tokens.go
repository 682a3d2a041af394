package request

import (
	"github.com/pdmesh/pdmesh/internal/openai"
)

// TokensTell reports whether the KV cache of a request without media follows from the tokens of
// its prompt alone, which it does not with a salt, and whether an engine returns them on
// request, which it does on two of the routes.
func (r *Request) TokensTell() bool {
	return (r.Kind == openai.Chat || r.Kind == openai.Completion) && r.last[FieldCacheSalt] == 0
}
