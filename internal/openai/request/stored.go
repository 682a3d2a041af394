package request

import (
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// MayBeStored reports whether the answer may be asked for later by an id that the client
// did not choose.
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

// PreviousResponse is the id of the response that the request goes on from, "" if it
// goes on from none, or the id is no text.
func (r *Request) PreviousResponse() string {
	raw := r.Raw(FieldPreviousResponseID)
	if r.Bypass != bypass.StoredResponse || raw[0] != '"' {
		return ""
	}
	return string(jsonscan.Unquote(raw))
}
