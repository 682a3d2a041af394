package request

import (
	"cmp"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// The two APIs of coding agents have other fields. As everywhere, only values that the
// edit of the prefill leg would hide from vLLM are checked here.

// readResponses is validate for /v1/responses.
func readResponses(r *Request) error {
	if raw := r.Raw(FieldPrompt); raw != nil && !jsonscan.IsNull(raw) {
		return invalid("prompt", "prompt templates are not supported")
	}
	limit, limited, wrongLimit := r.integer(FieldMaxOutputTokens)
	if err := cmp.Or(
		readCommon(r),
		r.checkBoolean(FieldIgnoreEOS), r.checkBoolean(FieldStore), r.checkBoolean(FieldBackground),
		wrongLimit, checkLimits(limit, limited, 0),
		r.checkStop(), r.checkList(FieldStopTokenIDs),
		r.checkInteger(FieldPriority),
		r.missing(FieldInput),
	); err != nil {
		return err
	}
	r.MaxTokens = limit
	readToolChoice(r)
	readEngineTools(r)
	readStored(r)
	return nil
}

// readEngineTools finds the requests with tools that engines run (--tool-server). After a tool, vLLM
// generates with the transfer params of the request again, although decode has used them
// (_generate_with_builtin_tools in entrypoints/openai/responses/serving.py, also in 0.32).
func readEngineTools(r *Request) {
	jsonscan.EachObject(r.Raw(FieldTools), func(tool []byte) {
		switch string(jsonscan.FindText(tool, 0, "type")) {
		case "web_search_preview", "code_interpreter", "container", "mcp":
			r.Bypass = bypass.EngineTools
		}
	})
}

// readStored finds the requests that only one instance can serve: one that continues a
// response needs the instance that has stored it, and one in the background is stored
// where it runs.
func readStored(r *Request) {
	if raw := r.Raw(FieldBackground); jsonscan.Truthy(raw) {
		if on, _ := jsonscan.LaxBool(raw); on {
			r.Bypass = bypass.Background
		}
	}
	// Last, because a response in the background that continues another one needs its instance, too.
	if raw := r.Raw(FieldPreviousResponseID); jsonscan.Truthy(raw) {
		r.Bypass = bypass.StoredResponse
	}
}

// readMessages is validate for /v1/messages.
func readMessages(r *Request) error {
	if err := r.missing(FieldModel, FieldMessages, FieldMaxTokens); err != nil {
		return err
	}
	if raw := r.Raw(FieldModel); jsonscan.IsNull(raw) {
		return r.wrong(FieldModel, errString)
	}
	if err := readCommon(r); err != nil {
		return err
	}
	limit, limited, err := r.integer(FieldMaxTokens)
	switch {
	case err != nil:
		return err
	case !limited:
		return r.wrong(FieldMaxTokens, errNull)
	}
	if err := cmp.Or(checkLimits(limit, true, 0), r.checkList(FieldStopSequences)); err != nil {
		return err
	}
	r.MaxTokens = limit
	raw := r.Raw(FieldThinking)
	switch {
	case forcedByType(r):
		r.CutReason = bypass.ForcedTool
	case raw != nil && raw[0] == '{':
		r.CutReason = bypass.ThinkingBudget
	}
	return nil
}

// forcedByType reports whether tool_choice of /v1/messages forces a call: its type is then
// "any" or "tool".
func forcedByType(r *Request) bool {
	kind := string(jsonscan.FindText(r.Raw(FieldToolChoice), 0, "type"))
	return kind == "any" || kind == "tool"
}
