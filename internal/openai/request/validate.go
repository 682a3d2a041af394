package request

import (
	"cmp"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// validate reads the fields that the proxy needs from the scanned body, and returns an
// error for values that vLLM refuses, so that no prefill is spent on them.
func validate(r *Request) error {
	switch r.Kind {
	case openai.Responses:
		return readResponses(r)
	case openai.Messages:
		return readMessages(r)
	case openai.Generate:
		return readGenerate(r)
	case openai.Completion, openai.Chat, openai.Other:
	}
	if err := cmp.Or(
		readCommon(r),
		r.checkBoolean(FieldIgnoreEOS),
		readStreamOptions(r),
		readLimits(r),
		r.checkStop(),
		r.checkList(FieldStopTokenIDs),
		r.checkInteger(FieldPriority), // which no engine sees
	); err != nil {
		return err
	}
	if r.Kind == openai.Chat && r.Raw(FieldMessages) == nil {
		return r.missing(FieldMessages)
	}
	readToolChoice(r)
	return readBypass(r)
}

// readCommon reads the fields of all kinds of requests.
func readCommon(r *Request) error {
	if raw := r.Raw(FieldModel); raw != nil && !jsonscan.IsNull(raw) {
		if raw[0] != '"' {
			return r.wrong(FieldModel, errString)
		}
		r.Model = string(jsonscan.Unquote(raw))
	}
	var err error
	r.Stream, err = r.boolean(FieldStream)
	return err
}

func readStreamOptions(r *Request) error {
	raw := r.Raw(FieldStreamOptions)
	if raw == nil || jsonscan.IsNull(raw) {
		return nil
	}
	if jsonscan.Truthy(raw) && !jsonscan.Truthy(r.Raw(FieldStream)) {
		return invalid("stream_options", "requires stream=true")
	}
	if raw[0] != '{' {
		return r.wrong(FieldStreamOptions, errObject)
	}
	m, ok := jsonscan.Find(raw, 0, "include_usage")
	if !ok {
		return nil
	}
	v, err := jsonscan.LaxBool(raw[m.Value:m.End])
	if err != nil {
		return invalid("stream_options.include_usage", err.Error())
	}
	r.IncludeUsage = v && r.Stream
	return nil
}

func readLimits(r *Request) error {
	maxTokens, hasMax, err := r.integer(FieldMaxTokens)
	if err != nil {
		return err
	}
	if r.Kind == openai.Chat {
		// The newer name takes precedence if both are given; completions ignore it.
		v, ok, err := r.integer(FieldMaxCompletionTokens)
		if err != nil {
			return err
		}
		if ok {
			maxTokens, hasMax = v, true
		}
	}
	minTokens, _, err := r.integer(FieldMinTokens)
	if err != nil {
		return err
	}
	if hasMax && maxTokens == 0 && echoOnly(r) {
		return nil // the request is not split, so the engine checks the rest
	}
	if err := checkLimits(maxTokens, hasMax, minTokens); err != nil {
		return err
	}
	if hasMax {
		r.MaxTokens = maxTokens
	}
	return nil
}

// echoOnly reports whether the client may request no token at all: for /v1/completions
// with echo, vLLM then returns the prompt with its logprobs.
func echoOnly(r *Request) bool {
	echo, err := r.boolean(FieldEcho) // readBypass reports a wrong type
	return err == nil && echo && r.Kind == openai.Completion
}

func readToolChoice(r *Request) {
	if raw := r.Raw(FieldToolChoice); raw != nil && (raw[0] == '{' || raw[0] == '"' && string(jsonscan.Unquote(raw)) == "required") {
		r.CutReason = bypass.ForcedTool
	}
}

// readBypass finds the requests that prefill and decode cannot split safely. vLLM's
// answer to several prompts has only the KV transfer of the first prompt, and decode engines
// that got a KV transfer have crashed on such requests (CVE-2026-94623).
func readBypass(r *Request) error {
	n, hasN, wrongN := r.integer(FieldN)
	bestOf, hasBest, wrongBest := r.integer(FieldBestOf)
	beam, wrongBeam := r.boolean(FieldUseBeamSearch)
	echo, wrongEcho := r.boolean(FieldEcho)
	if err := cmp.Or(wrongN, wrongBeam, wrongEcho); err != nil {
		return err
	}
	plp := r.Raw(FieldPromptLogprobs)
	switch {
	case severalPrompts(r):
		r.Bypass = bypass.SeveralPrompts
	case hasN && n > 1:
		r.Bypass = bypass.N
	case hasBest && bestOf > 1, wrongBest != nil: // newer engines ignore it
		r.Bypass = bypass.BestOf
	case beam:
		r.Bypass = bypass.BeamSearch
	case echo:
		r.Bypass = bypass.Echo
	case plp != nil && !jsonscan.IsNull(plp):
		r.Bypass = bypass.PromptLogprobs
	}
	return nil
}

// severalPrompts reports whether "prompt" is a list of more than one prompt, or "prompt_embeds" adds
// another one. A list of token ids is one prompt.
func severalPrompts(r *Request) bool {
	if r.Kind != openai.Completion {
		return false
	}
	raw := r.Raw(FieldPrompt)
	if embeds := r.Raw(FieldPromptEmbeds); jsonscan.Truthy(embeds) {
		s := jsonscan.Scanner{Text: embeds}
		_, _ = s.Value(0, 0) // scanned before: cannot fail
		if s.Several || jsonscan.Truthy(raw) {
			return true
		}
	}
	if len(raw) == 0 || raw[0] != '[' {
		return false
	}
	s := jsonscan.Scanner{Text: raw}
	first := raw[s.Space(1)]
	return r.several && (first == '"' || first == '[')
}
