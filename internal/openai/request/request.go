package request

import (
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Request is a completion request, parsed once.
type Request struct {
	Scanned

	Model  string // "" if absent or null
	Stream bool
	// IncludeUsage reports whether the client asked for the closing usage chunk.
	IncludeUsage bool
	// MaxTokens is the effective limit, 0 if the client set none.
	MaxTokens int64
	// CutReason is why an engine may refuse the prefill leg, which is cut after one token, although
	// the request is valid; "" if it may not. It is bypass.ForcedTool (vLLM before 0.33 may answer
	// 400 to half of a tool call), or bypass.ThinkingBudget (the budget is more than one token).
	CutReason string
	// KeepPriority passes the client's own "priority" on to the engines.
	KeepPriority bool
	// Priority is the JSON of the priority for the engine of the next leg, unless the client's own is
	// kept; "" for none.
	Priority string
	// Served is the model that engines get in place of the client's, as JSON; "" for the client's.
	Served string
	// PromptTokenIDs are the token ids that a chat's engines compute instead of its messages, as a
	// JSON list; nil for the messages. vLLM reads them from kv_transfer_params since 0.31 (vllm#48145).
	PromptTokenIDs []byte
	// Bypass is why the request must not be split into prefill and decode, "" if it may be. It
	// is a reason of package bypass, as CutReason is.
	Bypass string
}

// Parse checks and reads a completion request in one pass over the body. It returns an
// *openai.Error with status 400 for text that is not a JSON object, and for a wrong type in
// a field that is read. The same applies to a value that editing the prefill leg would hide
// from vLLM's own validation. After an error, the Request has the fields that could be read.
func Parse(kind openai.Kind, body []byte) (*Request, error) {
	r := &Request{Scanned: Scanned{Kind: kind, Body: body}}
	if err := r.scan(); err != nil {
		return r, err
	}
	return r, validate(r)
}

// ParseOther checks the body of a request to any other endpoint: it must be a JSON object.
// Only Model and Stream are read, without checks.
func ParseOther(body []byte) (*Request, error) {
	r := &Request{Scanned: Scanned{Kind: openai.Other, Body: body}}
	if err := r.scan(); err != nil {
		return nil, err
	}
	if raw := r.Raw(FieldModel); raw != nil && raw[0] == '"' {
		r.Model = string(jsonscan.Unquote(raw))
	}
	if raw := r.Raw(FieldStream); raw != nil {
		r.Stream, _ = jsonscan.LaxBool(raw) // the engine judges it
	}
	return r, nil
}

// EngineModel returns the model as engines get it, nil for none.
func (r *Request) EngineModel() []byte {
	if r.Served != "" {
		return []byte(r.Served)
	}
	return r.Raw(FieldModel)
}

// Prompt returns the prompt or the messages, as sent; nil if there is neither.
func (r *Request) Prompt() []byte {
	switch r.Kind {
	case openai.Chat, openai.Messages:
		return r.Raw(FieldMessages)
	case openai.Responses:
		return r.Raw(FieldInput)
	case openai.Generate:
		return r.Raw(FieldTokenIDs)
	case openai.Completion, openai.Other:
	}
	return r.Raw(FieldPrompt)
}
