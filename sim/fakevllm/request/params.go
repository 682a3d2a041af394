package request

import (
	"errors"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// rawFields are raw values of fields that vLLM looks at before types are converted.
type rawFields struct {
	prompt, messages, stream, streamOptions, toolChoice, suffix, embeds,
	logprobs, topLogprobs, promptLogprobs, responseFormat,
	addGenerate, continueMsg []byte
}

// reader is a request that is being read.
type reader struct {
	Request
	raw           rawFields
	input, system []byte // of the two APIs of agents
	answering     bool   // what was read last is part of an answer
}

func newReader(chat bool) *reader {
	return &reader{Request: Request{Chat: chat, N: 1, AddGenerate: chat, temperature: 1, topP: 1, repetitionPenalty: 1}}
}

// readParams reads a body of one of the two completion routes.
func readParams(body []byte, chat bool) (*reader, error) {
	p := newReader(chat)
	p.AddGenerate = true
	// Pydantic reports of all fields that are wrong at once. What vLLM itself refuses
	// comes before.
	var problems []pydantic.Problem
	collect := func(err error) error {
		e, ok := errors.AsType[*pydantic.Error](err)
		if !ok || e.Problems == nil {
			return err
		}
		problems = append(problems, e.Problems...)
		return nil
	}
	err := pydantic.ForEachMember(body, func(key string, raw []byte) error {
		switch key {
		case "prompt":
			p.raw.prompt = raw
			return nil // validated when parsed: it may be large
		case "messages":
			p.raw.messages = raw
			return nil
		}
		if err := pydantic.Validate(raw); err != nil {
			return err
		}
		return collect(p.field(key, raw))
	})
	if err != nil {
		return nil, err
	}
	if err := p.checkRaw(); err != nil {
		return nil, err
	}
	others := problems
	problems = nil // those of the first field come first
	if chat {
		err = collect(p.parseMessages(body))
	} else {
		err = collect(p.parsePrompt())
	}
	if err != nil {
		return nil, err
	}
	if problems = append(problems, others...); len(problems) > 0 {
		return nil, pydantic.Complaints(problems...)
	}
	return p, p.parseTools()
}

// field takes one top-level member. Unknown ones are allowed, as in vLLM.
func (p *reader) field(key string, raw []byte) (err error) {
	null := pydantic.IsNull(raw)
	switch key {
	case "stream":
		p.raw.stream = raw
	case "stream_options":
		p.raw.streamOptions, p.HasStreamOptions = raw, !null
	case "tool_choice":
		p.raw.toolChoice = raw
		return nil
	case "tools":
		p.rawTools = raw
		return nil
	case "suffix":
		p.raw.suffix = raw
	case "prompt_embeds":
		p.raw.embeds = raw
		return nil
	case "logprobs":
		p.raw.logprobs = raw
	case "top_logprobs":
		p.raw.topLogprobs = raw
	case "prompt_logprobs":
		p.raw.promptLogprobs = raw
	case "response_format":
		p.raw.responseFormat = raw
	case "add_generation_prompt":
		p.raw.addGenerate = raw
	case "continue_final_message":
		p.raw.continueMsg = raw
	}
	if null {
		return p.nullField(key)
	}
	switch key {
	case "model":
		p.Model, err = pydantic.String(key, raw)
	case "max_tokens":
		p.MaxTokens, err = optionalInt(key, raw)
	case "max_completion_tokens":
		if p.Chat {
			p.MaxCompletionTokens, err = optionalInt(key, raw)
		}
	case "n":
		p.N, err = pydantic.Int(key, raw)
	case "min_tokens":
		p.Sampling.MinTokens, err = pydantic.Int(key, raw)
	case "ignore_eos":
		p.Sampling.IgnoreEOS, err = pydantic.Bool(key, raw)
	case "include_stop_str_in_output":
		p.Sampling.IncludeStop, err = pydantic.Bool(key, raw)
	case "stop_token_ids":
		p.Sampling.StopTokenIDs, err = pydantic.Ints(key, raw)
	case "stop":
		if raw[0] == '"' {
			var s string
			s, err = pydantic.Unquote(raw)
			p.Sampling.Stop = []string{s}
		} else if p.Sampling.Stop, err = pydantic.Strings(key, raw); err != nil {
			// A text or a list: pydantic says what is wrong with it as either.
			text := pydantic.Problem{Kind: "string_type", Loc: pydantic.BodyLoc(key), Msg: "Input should be a valid string", Input: pydantic.Describe(raw)}
			err = pydantic.Complaints(append([]pydantic.Problem{text}, pydantic.AsError(err).Problems...)...)
		}
	case "stream":
		p.Stream, err = pydantic.Bool(key, raw)
	case "stream_options":
		err = p.streamOptions(raw)
	case "echo":
		p.Echo, err = pydantic.Bool(key, raw)
	case "logprobs":
		if p.Chat {
			_, err = pydantic.Bool(key, raw)
		} else {
			p.Logprobs, err = optionalInt(key, raw)
		}
	case "top_logprobs":
		if p.Chat {
			_, err = pydantic.Int(key, raw)
		}
	case "prompt_logprobs":
		p.PromptLogprobs, err = optionalInt(key, raw)
	case "truncate_prompt_tokens":
		if p.truncate, err = optionalInt(key, raw); err == nil && *p.truncate < -1 {
			err = pydantic.Complaints(pydantic.Problem{Kind: "greater_than_equal", Loc: pydantic.BodyLoc(key), Msg: "Input should be greater than or equal to -1",
				Input: pydantic.Describe(raw), Ctx: "'ge': -1"})
		}
	case "add_generation_prompt":
		p.AddGenerate, err = pydantic.Bool(key, raw)
	case "continue_final_message":
		p.ContinueMsg, err = pydantic.Bool(key, raw)
	case "return_token_ids":
		p.ReturnTokenIDs, err = pydantic.Bool(key, raw)
	case "request_id":
		p.RequestID, err = pydantic.String(key, raw)
	case "kv_transfer_params":
		if err = pydantic.CheckObject(key, raw); err == nil {
			p.KV = raw
		}
	case "use_beam_search":
		p.BeamSearch, err = pydantic.Bool(key, raw)
	default:
		err = p.samplingField(key, raw)
	}
	return err
}

// samplingField takes members that are checked but don't change the answer.
func (p *reader) samplingField(key string, raw []byte) (err error) {
	switch key {
	case "temperature":
		p.temperature, err = pydantic.Float(key, raw)
	case "top_p":
		p.topP, err = pydantic.Float(key, raw)
	case "min_p":
		p.minP, err = pydantic.Float(key, raw)
	case "top_k":
		p.topK, err = pydantic.Int(key, raw)
	case "presence_penalty":
		p.presencePenalty, err = pydantic.Float(key, raw)
	case "frequency_penalty":
		p.frequencyPenalty, err = pydantic.Float(key, raw)
	case "repetition_penalty":
		p.repetitionPenalty, err = pydantic.Float(key, raw)
	case "length_penalty":
		_, err = pydantic.Float(key, raw)
	case "seed", "priority":
		_, err = pydantic.Int(key, raw)
	case "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens",
		"return_tokens_as_token_ids", "parallel_tool_calls", "include_reasoning":
		_, err = pydantic.Bool(key, raw)
	case "user", "suffix", "session_id", "chat_template":
		_, err = pydantic.String(key, raw)
	case "allowed_token_ids":
		_, err = pydantic.Ints(key, raw)
	case "bad_words":
		_, err = pydantic.Strings(key, raw)
	case "documents":
		_, err = pydantic.RawList(key, raw)
	case "logit_bias":
		err = checkLogitBias(raw)
	case "ec_transfer_params", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs":
		err = pydantic.CheckObject(key, raw)
	case "vllm_xargs":
		err = checkXArgs(raw)
	case "cache_salt":
		if err = checkCacheSalt(raw); err == nil {
			p.CacheSalt, err = pydantic.Unquote(raw)
		}
	case "reasoning_effort":
		err = oneOf(key, raw, "none", "minimal", "low", "medium", "high", "xhigh", "max")
	}
	return err
}

// nullField refuses null where the model has no Optional; elsewhere null is
// the same as absent and takes back an earlier duplicate.
func (p *reader) nullField(key string) error {
	switch key {
	case "min_tokens", "ignore_eos", "use_beam_search", "length_penalty", "include_stop_str_in_output",
		"skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "priority", "bad_words", "request_id":
		return nullRefused(key)
	case "n":
		if !p.Chat {
			return nullRefused(key)
		}
		p.N = 1
	case "echo":
		if p.Chat {
			return nullRefused(key)
		}
		p.Echo = false
	case "add_generation_prompt", "continue_final_message":
		if p.Chat {
			return nullRefused(key)
		}
	case "model":
		p.Model = ""
	case "max_tokens":
		p.MaxTokens = nil
	case "max_completion_tokens":
		p.MaxCompletionTokens = nil
	case "stop":
		p.Sampling.Stop = nil
	case "stop_token_ids":
		p.Sampling.StopTokenIDs = nil
	case "stream":
		p.Stream = false
	case "stream_options":
		p.IncludeUsage, p.ContinuousUsage = false, false
	case "logprobs":
		p.Logprobs = nil
	case "prompt_logprobs":
		p.PromptLogprobs = nil
	case "truncate_prompt_tokens":
		p.truncate = nil
	case "kv_transfer_params":
		p.KV = nil
	case "temperature":
		p.temperature = 1
	case "top_p":
		p.topP = 1
	}
	return nil
}

func nullRefused(key string) error {
	raw := []byte("null")
	switch key {
	case "min_tokens", "n", "priority":
		return pydantic.Invalid("int_type", key, raw, "Input should be a valid integer")
	case "length_penalty":
		return pydantic.Invalid("float_type", key, raw, "Input should be a valid number")
	case "bad_words":
		return pydantic.Invalid("list_type", key, raw, "Input should be a valid list")
	case "request_id":
		return pydantic.Invalid("string_type", key, raw, "Input should be a valid string")
	}
	return pydantic.Invalid("bool_type", key, raw, "Input should be a valid boolean")
}

func optionalInt(key string, raw []byte) (*int, error) {
	n, err := pydantic.Int(key, raw)
	if err != nil {
		return nil, err
	}
	return &n, nil
}

func (p *reader) streamOptions(raw []byte) error {
	if raw[0] != '{' {
		return pydantic.Invalid("model_attributes_type", "stream_options", raw, "Input should be a valid dictionary or object to extract fields from")
	}
	p.IncludeUsage, p.ContinuousUsage = false, false
	err := pydantic.ForEachMember(raw, func(key string, raw []byte) (err error) {
		if pydantic.IsNull(raw) {
			return nil
		}
		switch key {
		case "include_usage":
			p.IncludeUsage, err = pydantic.Bool("stream_options."+key, raw)
		case "continuous_usage_stats":
			p.ContinuousUsage, err = pydantic.Bool("stream_options."+key, raw)
		}
		return err
	})
	p.ContinuousUsage = p.ContinuousUsage && p.IncludeUsage
	return err
}

func oneOf(key string, raw []byte, allowed ...string) error {
	s, err := pydantic.String(key, raw)
	if err != nil {
		return err
	}
	if slices.Contains(allowed, s) {
		return nil
	}
	for i := range allowed {
		allowed[i] = pydantic.PyRepr(allowed[i])
	}
	last := len(allowed) - 1
	expected := strings.Join(allowed[:last], ", ") + " or " + allowed[last]
	return pydantic.Complaints(pydantic.Problem{Kind: "literal_error", Loc: pydantic.BodyLoc(key), Msg: "Input should be " + expected, Input: s,
		Ctx: "'expected': " + pydantic.PyRepr(expected)})
}
