package openai

import (
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
)

// validate takes out of the scanned body what the proxy must know and refuses what
// vLLM would refuse, so that no prefill is spent on it.
func validate(r *Request) error {
	switch r.Kind {
	case Responses:
		return readResponses(r)
	case Messages:
		return readMessages(r)
	case Generate:
		return readGenerate(r)
	case Completion, Chat, Other:
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
	if r.Kind == Chat && r.Raw(FieldMessages) == nil {
		// An engine would tell how many fields there are, those that we add among them.
		return invalid("messages", inputOf(r.Body[r.body.open:]), errMissing)
	}
	readToolChoice(r)
	return readBypass(r)
}

// readCommon reads what requests of all kinds have.
func readCommon(r *Request) error {
	if raw := r.Raw(FieldModel); raw != nil && !isNull(raw) {
		if raw[0] != '"' {
			return r.wrong(FieldModel, errStringType)
		}
		r.Model = string(unquote(raw))
	}
	var err error
	r.Stream, err = r.boolean(FieldStream)
	return err
}

func readStreamOptions(r *Request) error {
	raw := r.Raw(FieldStreamOptions)
	if raw == nil || isNull(raw) {
		return nil
	}
	if truthy(raw) && !truthy(r.Raw(FieldStream)) {
		return badRequest("stream_options", "", "Stream options can only be defined when `stream=True`.")
	}
	if raw[0] != '{' {
		return r.wrong(FieldStreamOptions, errNoObject)
	}
	s := scanner{b: raw}
	var bad error
	_, _ = s.members(0, 0, func(m member) error { // scanned before: cannot fail
		if string(unquote(raw[m.key:m.keyEnd])) == "include_usage" {
			v, why := laxBool(raw[m.val:m.end])
			if r.IncludeUsage, bad = v && r.Stream, nil; why != nil {
				bad = invalid("stream_options.include_usage", inputOf(raw[m.val:m.end]), why)
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
	if r.Kind == Chat {
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
		return badRequest("max_tokens", strconv.FormatInt(maxTokens, 10), fmt.Sprintf("max_tokens must be at least 1, got %d.", maxTokens))
	}
	if hasMin && minTokens < 0 {
		return badRequest("", "", fmt.Sprintf("min_tokens must be greater than or equal to 0, got %d.", minTokens))
	}
	if hasMin && hasMax && minTokens > maxTokens {
		return badRequest("", "", fmt.Sprintf(
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
	return err == nil && echo && r.Kind == Completion
}

func readStop(r *Request) error {
	if raw := r.Raw(FieldStop); raw != nil && !isNull(raw) && raw[0] != '"' && raw[0] != '[' {
		return r.wrong(FieldStop, errStringType, errListType)
	}
	if raw := r.Raw(FieldStopTokenIDs); raw != nil && !isNull(raw) && raw[0] != '[' {
		return r.wrong(FieldStopTokenIDs, errListType)
	}
	return nil
}

func readToolChoice(r *Request) {
	if raw := r.Raw(FieldToolChoice); raw != nil && (raw[0] == '{' || raw[0] == '"' && string(unquote(raw)) == "required") {
		r.CutReason = alone.ForcedTool
	}
}

// readBypass finds the requests that P/D cannot carry safely: engines return
// the hand-over of the first prompt only, and decode engines have crashed on
// the rest (protocol rule R3, CVE-2026-94623).
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
	case plp != nil && !isNull(plp):
		r.Bypass = alone.PromptLogprobs
	}
	return nil
}

// severalPrompts tells whether "prompt" is a list of more than one prompt. A
// list of token ids is one prompt.
func severalPrompts(r *Request) bool {
	raw := r.Raw(FieldPrompt)
	if r.Kind != Completion || len(raw) == 0 || raw[0] != '[' {
		return false
	}
	s := scanner{b: raw}
	first := raw[s.space(1)]
	return r.several && (first == '"' || first == '[')
}
