package request

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/pydantic"
)

// The two APIs of coding agents have fields of their own. As everywhere, judged here
// is only what the edit of the prefill leg would hide from vLLM.

// readResponses is validate for /v1/responses.
func readResponses(r *Request) error {
	if raw := r.Raw(FieldPrompt); raw != nil && !jsonscan.IsNull(raw) {
		return pydantic.BadRequest("prompt", "", "prompt template is not supported") // before all types
	}
	if err := readCommon(r); err != nil {
		return err
	}
	for _, f := range []Field{FieldIgnoreEOS, FieldStore, FieldBackground} {
		if _, err := r.boolean(f); err != nil {
			return err
		}
	}
	limit, limited, err := r.integer(FieldMaxOutputTokens)
	switch {
	case err != nil:
		return err
	case limited && limit < 1:
		return pydantic.BadRequest("max_tokens", strconv.FormatInt(limit, 10), fmt.Sprintf("max_tokens must be at least 1, got %d.", limit))
	}
	r.MaxTokens = limit
	if raw := r.Raw(FieldStop); raw != nil && !jsonscan.IsNull(raw) && raw[0] != '"' && raw[0] != '[' {
		return r.wrong(FieldStop, pydantic.ErrStringType, pydantic.ErrListType)
	}
	if _, _, err := r.integer(FieldPriority); err != nil {
		return err
	}
	if r.Raw(FieldInput) == nil {
		// vLLM has put a field into the object before it counts.
		return pydantic.Invalid("input", fmt.Sprintf("<dict of %d items>", pydantic.CountMembers(r.Body[r.body.open:])+1), pydantic.ErrMissing)
	}
	readToolChoice(r)
	readStored(r)
	return nil
}

// readStored finds the requests that one instance alone can serve: one that goes on
// from a response needs the instance that has stored it, and one that runs in the
// background is stored where it runs.
func readStored(r *Request) {
	if raw := r.Raw(FieldPreviousResponseID); pydantic.Truthy(raw) {
		r.Bypass = alone.StoredResponse
	}
	if raw := r.Raw(FieldBackground); pydantic.Truthy(raw) {
		if on, _ := pydantic.Bool(raw); on {
			r.Bypass = alone.Background
		}
	}
}

// readMessages is validate for /v1/messages.
func readMessages(r *Request) error {
	if err := r.missing(FieldModel, FieldMessages, FieldMaxTokens); err != nil {
		return err
	}
	if raw := r.Raw(FieldModel); jsonscan.IsNull(raw) {
		return r.wrong(FieldModel, pydantic.ErrStringType)
	}
	if err := readCommon(r); err != nil {
		return err
	}
	limit, limited, err := r.integer(FieldMaxTokens)
	switch {
	case err != nil:
		return err
	case !limited:
		return r.wrong(FieldMaxTokens, pydantic.ErrIntType)
	case limit < 1:
		return r.wrong(FieldMaxTokens, pydantic.ErrNotPositive)
	}
	r.MaxTokens = limit
	if raw := r.Raw(FieldStopSequences); raw != nil && !jsonscan.IsNull(raw) && raw[0] != '[' {
		return r.wrong(FieldStopSequences, pydantic.ErrListType)
	}
	raw := r.Raw(FieldThinking)
	switch {
	case forcedByType(r):
		r.CutReason = alone.ForcedTool
	case raw != nil && raw[0] == '{':
		r.CutReason = alone.ThinkingBudget
	}
	return nil
}

// forcedByType tells whether tool_choice of /v1/messages forces a call: its type is
// then "any" or "tool".
func forcedByType(r *Request) bool {
	raw := r.Raw(FieldToolChoice)
	if len(raw) == 0 || raw[0] != '{' {
		return false
	}
	m, ok := jsonscan.Find(raw, 0, "type")
	if !ok || raw[m.Value] != '"' {
		return false
	}
	kind := string(jsonscan.Unquote(raw[m.Value:m.End]))
	return kind == "any" || kind == "tool"
}
