package request

import (
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// MayBeStored reports whether the client may later request the answer by an id that it did not choose.
func (r *Request) MayBeStored() bool {
	if r.Kind != openai.Responses || r.Raw(FieldRequestID) != nil {
		return false
	}
	store := r.Raw(FieldStore)
	if store == nil || jsonscan.IsNull(store) {
		return true
	}
	on, _ := jsonscan.LaxBool(store) // was read before
	return on
}

// PreviousResponse returns the id of the response that the request continues, "" if it
// continues none, or if the id is not a string.
func (r *Request) PreviousResponse() string {
	raw := r.Raw(FieldPreviousResponseID)
	if r.Bypass != bypass.StoredResponse || raw[0] != '"' {
		return ""
	}
	return string(jsonscan.Unquote(raw))
}
