package request

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/pydantic"
)

// validate takes out of the scanned body what the proxy must know and refuses what
// vLLM would refuse, so that no prefill is spent on it.
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
	if err := readCommon(r); err != nil {
		return err
	}
	if _, err := r.boolean(FieldIgnoreEOS); err != nil {
		return err
	}
	if err := readStreamOptions(r); err != nil {
		return err
	}
	if err := readLimits(r); err != nil {
		return err
	}
	if err := readStop(r); err != nil {
		return err
	}
	if _, _, err := r.integer(FieldPriority); err != nil {
		return err // which no engine sees
	}
	if r.Kind == openai.Chat && r.Raw(FieldMessages) == nil {
		// An engine would tell how many fields there are, those that we add among them.
		return pydantic.Invalid("messages", pydantic.Shown(r.Body[r.body.open:]), pydantic.ErrMissing)
	}
	readToolChoice(r)
	return readBypass(r)
}

// readCommon reads what requests of all kinds have.
func readCommon(r *Request) error {
	if raw := r.Raw(FieldModel); raw != nil && !jsonscan.IsNull(raw) {
		if raw[0] != '"' {
			return r.wrong(FieldModel, pydantic.ErrStringType)
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
	if pydantic.Truthy(raw) && !pydantic.Truthy(r.Raw(FieldStream)) {
		return pydantic.BadRequest("stream_options", "", "Stream options can only be defined when `stream=True`.")
	}
	if raw[0] != '{' {
		return r.wrong(FieldStreamOptions, pydantic.ErrNoObject)
	}
	s := jsonscan.Scanner{Text: raw}
	var bad error
	_, _ = s.Members(0, 0, func(m jsonscan.Member) error { // scanned before: cannot fail
		if string(jsonscan.Unquote(raw[m.Key:m.KeyEnd])) == "include_usage" {
			v, why := pydantic.Bool(raw[m.Value:m.End])
			if r.IncludeUsage, bad = v && r.Stream, nil; why != nil {
				bad = pydantic.Invalid("stream_options.include_usage", pydantic.Shown(raw[m.Value:m.End]), why)
			}
		}
		return nil
	})
	return bad
}

func readLimits(r *Request) error {
	maxTokens, hasMax, err := r.integer(FieldMaxTokens)
	if err != nil {
		return err
	}
	if r.Kind == openai.Chat {
		// The newer name wins where both are given; completions ignore it.
		v, ok, err := r.integer(FieldMaxCompletionTokens)
		if err != nil {
			return err
		}
		if ok {
			maxTokens, hasMax = v, true
		}
	}
	minTokens, hasMin, err := r.integer(FieldMinTokens)
	if err != nil {
		return err
	}
	if hasMax && maxTokens == 0 && echoOnly(r) {
		return nil // and the request is not split, so the engine judges the rest
	}
	if hasMax && maxTokens < 1 {
		return pydantic.BadRequest("max_tokens", strconv.FormatInt(maxTokens, 10), fmt.Sprintf("max_tokens must be at least 1, got %d.", maxTokens))
	}
	if hasMin && minTokens < 0 {
		return pydantic.BadRequest("", "", fmt.Sprintf("min_tokens must be greater than or equal to 0, got %d.", minTokens))
	}
	if hasMin && hasMax && minTokens > maxTokens {
		return pydantic.BadRequest("", "", fmt.Sprintf(
			"min_tokens must be less than or equal to max_tokens=%d, got %d.", maxTokens, minTokens))
	}
	if hasMax {
		r.MaxTokens = maxTokens
	}
	return nil
}

// echoOnly tells whether the client may ask for no token at all: of
// /v1/completions with echo vLLM then answers the prompt, with its logprobs.
func echoOnly(r *Request) bool {
	echo, err := r.boolean(FieldEcho) // a wrong type is told of by readBypass
	return err == nil && echo && r.Kind == openai.Completion
}

func readStop(r *Request) error {
	if raw := r.Raw(FieldStop); raw != nil && !jsonscan.IsNull(raw) && raw[0] != '"' && raw[0] != '[' {
		return r.wrong(FieldStop, pydantic.ErrStringType, pydantic.ErrListType)
	}
	if raw := r.Raw(FieldStopTokenIDs); raw != nil && !jsonscan.IsNull(raw) && raw[0] != '[' {
		return r.wrong(FieldStopTokenIDs, pydantic.ErrListType)
	}
	return nil
}

func readToolChoice(r *Request) {
	if raw := r.Raw(FieldToolChoice); raw != nil && (raw[0] == '{' || raw[0] == '"' && string(jsonscan.Unquote(raw)) == "required") {
		r.CutReason = alone.ForcedTool
	}
}

// readBypass finds the requests that prefill and decode cannot split safely. vLLM's
// answer to several prompts has only the hand-over of the first prompt, and decode engines
// that got a hand-over have crashed on such requests (CVE-2026-94623).
func readBypass(r *Request) error {
	n, hasN, err := r.integer(FieldN)
	if err != nil {
		return err
	}
	bestOf, hasBest, wrongBest := r.integer(FieldBestOf)
	beam, err := r.boolean(FieldUseBeamSearch)
	if err != nil {
		return err
	}
	echo, err := r.boolean(FieldEcho)
	if err != nil {
		return err
	}
	plp := r.Raw(FieldPromptLogprobs)
	switch {
	case severalPrompts(r):
		r.Bypass = alone.SeveralPrompts
	case hasN && n > 1:
		r.Bypass = alone.N
	case hasBest && bestOf > 1, wrongBest != nil: // new engines do not look at it
		r.Bypass = alone.BestOf
	case beam:
		r.Bypass = alone.BeamSearch
	case echo:
		r.Bypass = alone.Echo
	case plp != nil && !jsonscan.IsNull(plp):
		r.Bypass = alone.PromptLogprobs
	}
	return nil
}

// severalPrompts tells whether "prompt" is a list of more than one prompt. A
// list of token ids is one prompt.
func severalPrompts(r *Request) bool {
	raw := r.Raw(FieldPrompt)
	if r.Kind != openai.Completion || len(raw) == 0 || raw[0] != '[' {
		return false
	}
	s := jsonscan.Scanner{Text: raw}
	first := raw[s.Space(1)]
	return r.several && (first == '"' || first == '[')
}
