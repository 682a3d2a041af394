package openai

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
)

// The two APIs of coding agents have fields of their own. As everywhere, judged here
// is only what the edit of the prefill leg would hide from vLLM.

// readResponses is validate for /v1/responses.
func readResponses(r *Request) error {
	if raw := r.Raw(FieldPrompt); raw != nil && !isNull(raw) {
		return badRequest("prompt", "", "prompt template is not supported") // before all types
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
		return badRequest("max_tokens", strconv.FormatInt(limit, 10), fmt.Sprintf("max_tokens must be at least 1, got %d.", limit))
	}
	r.MaxTokens = limit
	if raw := r.Raw(FieldStop); raw != nil && !isNull(raw) && raw[0] != '"' && raw[0] != '[' {
		return r.wrong(FieldStop, errStringType, errListType)
	}
	if _, _, err := r.integer(FieldPriority); err != nil {
		return err
	}
	if r.Raw(FieldInput) == nil {
		// vLLM has put a field into the object before it counts.
		return invalid("input", fmt.Sprintf("<dict of %d items>", countMembers(r.Body[r.body.open:])+1), errMissing)
	}
	readToolChoice(r)
	readStored(r)
	return nil
}

// readStored finds the requests that one instance alone can serve: one that goes on
// from a response needs the instance that has stored it, and one that runs in the
// background is stored where it runs.
func readStored(r *Request) {
	if raw := r.Raw(FieldPreviousResponseID); truthy(raw) {
		r.Bypass = alone.StoredResponse
	}
	if raw := r.Raw(FieldBackground); truthy(raw) {
		if on, _ := laxBool(raw); on {
			r.Bypass = alone.Background
		}
	}
}

// readMessages is validate for /v1/messages.
func readMessages(r *Request) error {
	if err := r.missing(FieldModel, FieldMessages, FieldMaxTokens); err != nil {
		return err
	}
	if raw := r.Raw(FieldModel); isNull(raw) {
		return r.wrong(FieldModel, errStringType)
	}
	if err := readCommon(r); err != nil {
		return err
	}
	limit, limited, err := r.integer(FieldMaxTokens)
	switch {
	case err != nil:
		return err
	case !limited:
		return r.wrong(FieldMaxTokens, errIntType)
	case limit < 1:
		return r.wrong(FieldMaxTokens, &complaint{"value_error", "Value error, max_tokens must be positive"})
	}
	r.MaxTokens = limit
	if raw := r.Raw(FieldStopSequences); raw != nil && !isNull(raw) && raw[0] != '[' {
		return r.wrong(FieldStopSequences, errListType)
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
	m, ok := findMember(raw, 0, "type")
	if !ok || raw[m.val] != '"' {
		return false
	}
	kind := string(unquote(raw[m.val:m.end]))
	return kind == "any" || kind == "tool"
}
