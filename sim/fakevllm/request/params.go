package request

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// reader is a request that is being read.
type reader struct {
	Request
	pydantic.Errors
	raw       map[string]json.RawMessage // members of the body
	into      map[string]any             // what a member is converted into, or a func([]byte) that reads it
	required  []string                   // members that cannot be null
	answering bool                       // the last message is part of an answer
}

// read reads a body of an API.
func (a API) read(raw map[string]json.RawMessage) *reader {
	chat := a == Chat || a == Responses || a == Messages
	p := &reader{Request: Request{API: a, Chat: chat, N: 1, AddGenerate: chat, temperature: 1, topP: 1, repetitionPenalty: 1}, raw: raw}
	p.into = map[string]any{
		"model": &p.Model, "stream": &p.Stream, "stream_options": p.streamOptions, "kv_transfer_params": &p.KV, "request_id": &p.RequestID,
		"return_token_ids": &p.ReturnTokenIDs, "priority": &p.Priority, "max_tokens": &p.MaxTokens, "n": &p.N, "seed": &p.seed,
		"min_tokens": &p.Sampling.MinTokens, "ignore_eos": &p.Sampling.IgnoreEOS, "stop": p.stop, "stop_token_ids": &p.Sampling.StopTokenIDs,
		"prompt_logprobs": &p.PromptLogprobs, "temperature": &p.temperature, "top_p": &p.topP, "top_k": &p.topK,
		"vllm_xargs": p.xargs, "cache_salt": p.cacheSalt,
	}
	p.required = []string{"request_id", "priority", "ignore_eos", "min_tokens"}
	if !chat {
		p.required = append(p.required, "n")
	}
	switch a {
	case Completions, Chat:
		p.completion()
	case Responses:
		p.responses()
	case Messages:
		p.messages()
	case Generate:
		p.generate()
	}
	return p
}

// only keeps the members of these names, and adds more.
func (p *reader) only(names []string, more map[string]any) {
	maps.DeleteFunc(p.into, func(name string, _ any) bool { return !slices.Contains(names, name) })
	maps.Copy(p.into, more)
}

// convert converts the members of the body. vLLM allows unknown ones; null is the same as absent.
func (p *reader) convert() {
	for _, name := range slices.Sorted(maps.Keys(p.raw)) {
		raw, into := p.raw[name], p.into[name]
		read, reads := into.(func([]byte))
		switch {
		case into == nil:
		case pydantic.IsNull(raw):
			if slices.Contains(p.required, name) {
				p.Add(pydantic.Invalid(name, "Input should not be null"))
			}
		case reads:
			read(raw)
		default:
			p.Add(pydantic.Into(into, name, raw))
		}
	}
}

// require notes which of these members are absent.
func (p *reader) require(names ...string) {
	for _, name := range names {
		if p.raw[name] == nil {
			p.Add(pydantic.Missing(name))
		}
	}
}

// The values of members. One that is invalid is empty, and its error is noted.

func (p *reader) text(loc string, raw []byte) string {
	s, err := pydantic.String(loc, raw)
	p.Add(err)
	return s
}

func (p *reader) list(loc string, raw []byte) []json.RawMessage {
	list, err := pydantic.RawList(loc, raw)
	p.Add(err)
	return list
}

func (p *reader) object(loc string, raw []byte) map[string]json.RawMessage {
	members, err := pydantic.Object(loc, raw)
	p.Add(err)
	return members
}

// completion reads a body of one of the two completion routes.
func (p *reader) completion() {
	reasoning, parallel := true, true
	maps.Copy(p.into, map[string]any{
		"logprobs": &p.Logprobs, "echo": &p.Echo,
		"use_beam_search": &p.BeamSearch, "include_stop_str_in_output": &p.Sampling.IncludeStop, "truncate_prompt_tokens": &p.truncate,
		"min_p": &p.minP, "presence_penalty": &p.presencePenalty, "frequency_penalty": &p.frequencyPenalty,
		"repetition_penalty": &p.repetitionPenalty, "length_penalty": new(float64), "allowed_token_ids": new([]int), "bad_words": new([]string),
		"logit_bias": p.logitBias, "stream_interval": p.streamInterval, "structured_outputs": p.structuredOutputs,
		"include_reasoning": &reasoning, "parallel_tool_calls": &parallel,
		"documents": func(raw []byte) { p.list("documents", raw) },
		"reasoning_effort": func(raw []byte) {
			p.Add(pydantic.OneOf("reasoning_effort", raw, "none", "minimal", "low", "medium", "high", "xhigh", "max"))
		},
	})
	for _, name := range []string{"skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "return_tokens_as_token_ids"} {
		p.into[name] = new(bool)
	}
	for _, name := range []string{"user", "suffix", "session_id", "chat_template"} {
		p.into[name] = new(string)
	}
	for _, name := range []string{"ec_transfer_params", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs"} {
		p.into[name] = new([]byte)
	}
	p.required = append(p.required, "use_beam_search", "length_penalty", "include_stop_str_in_output", "skip_special_tokens",
		"spaces_between_special_tokens", "add_special_tokens", "bad_words")
	if p.Chat {
		maps.Copy(p.into, map[string]any{
			"logprobs": new(bool), "top_logprobs": new(int), "max_completion_tokens": &p.MaxCompletionTokens,
			"add_generation_prompt": &p.AddGenerate, "continue_final_message": &p.ContinueMsg,
		})
		p.required = append(p.required, "echo", "add_generation_prompt", "continue_final_message")
	}
	p.convert()
	p.HideReasoning, p.OneCall = !reasoning, !parallel
	p.checkRaw()
	earlier := p.Errors
	p.Errors = pydantic.Errors{} // of pydantic's errors that of the first field comes first
	if p.Chat {
		p.parseMessages()
	} else if raw := p.raw["prompt"]; !pydantic.IsNull(raw) {
		p.parsePrompt(raw)
	}
	if p.truncate != nil && *p.truncate < -1 {
		p.Add(pydantic.Invalid("truncate_prompt_tokens", "Input should be greater than or equal to -1"))
	}
	if p.Follow(earlier); p.Chat && p.Err() == nil {
		p.parseTools()
	}
}

// checkRaw makes vLLM's checks of the raw body, before types are converted: there "false" is a
// true value and {} a false one.
func (p *reader) checkRaw() {
	truthy := func(name string) bool { return pydantic.Truthy(p.raw[name]) }
	is := func(name string) bool { return !pydantic.IsNull(p.raw[name]) }
	if truthy("stream_options") && !truthy("stream") {
		p.Add(pydantic.BadRequest("stream_options", "Stream options can only be defined when `stream=True`."))
	}
	if is("response_format") {
		p.responseFormat(p.raw["response_format"])
	}
	p.checkLogprobs()
	switch {
	case p.Chat:
		if truthy("continue_final_message") && truthy("add_generation_prompt") {
			p.Add(pydantic.BadRequest("", "Cannot set both `continue_final_message` and `add_generation_prompt` to True."))
		}
	case is("prompt_embeds") && string(p.raw["prompt_embeds"]) != "[]":
		p.Add(pydantic.BadRequest("prompt_embeds", "You must set `--enable-prompt-embeds` to input `prompt_embeds`."))
	case !is("prompt") || string(p.raw["prompt"]) == `""`:
		p.Add(pydantic.BadRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty."))
	case is("suffix"):
		p.Add(pydantic.BadRequest("suffix", "suffix is only supported for models with FIM completion rendering"))
	}
}

// checkLogprobs checks the numbers of logprobs: "logprobs" of completions, and "top_logprobs"
// of chats, which "logprobs" allows.
func (p *reader) checkLogprobs() {
	top, allowed := "logprobs", true
	if p.Chat {
		top, allowed = "top_logprobs", pydantic.Truthy(p.raw["logprobs"])
	}
	n := 0.0
	for _, name := range []string{"prompt_logprobs", top} {
		raw := p.raw[name]
		if n = 0; pydantic.IsNull(raw) {
			continue
		}
		if strings.IndexByte(`"[{`, raw[0]) >= 0 {
			p.Add(pydantic.BadRequest(name, "`%s` must be an integer.", name))
			return
		}
		var err error
		n, err = pydantic.Float(name, raw)
		p.Add(err)
		switch {
		case name == "prompt_logprobs" && pydantic.Truthy(p.raw["stream"]) && (n > 0 || n == -1):
			p.Add(pydantic.BadRequest(name, "`prompt_logprobs` are not available when `stream=True`."))
		case n < 0 && n != -1:
			p.Add(pydantic.BadRequest(name, "`%s` must be a positive value or -1.", name))
		case name == top && n != 0 && !allowed:
			p.Add(pydantic.BadRequest(name, "when using `top_logprobs`, `logprobs` must be set to true."))
		}
	}
	if p.Chat && allowed {
		number := int(n)
		p.Logprobs = &number
	}
}

func (p *reader) stop(raw []byte) {
	var err error
	if p.Sampling.Stop = []string{pydantic.Text(raw)}; raw[0] != '"' {
		p.Sampling.Stop, err = pydantic.Strings("stop", raw)
	}
	if err != nil {
		p.Add(pydantic.Invalid("stop", "Input should be a valid string or list of strings"))
	}
}

func (p *reader) cacheSalt(raw []byte) {
	p.CacheSalt = pydantic.Text(raw)
	switch {
	case p.CacheSalt == "":
		p.Add(pydantic.BadRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided."))
	case len(p.CacheSalt) > 128 || strings.ContainsAny(p.CacheSalt, "@/\\\x00"):
		p.Add(pydantic.BadRequest("cache_salt", "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."))
	}
}

func (p *reader) streamOptions(raw []byte) {
	p.HasStreamOptions = true
	members := p.object("stream_options", raw)
	for name, into := range map[string]*bool{"include_usage": &p.IncludeUsage, "continuous_usage_stats": &p.ContinuousUsage} {
		if raw := members[name]; !pydantic.IsNull(raw) {
			p.Add(pydantic.Into(into, "stream_options."+name, raw))
		}
	}
	p.ContinuousUsage = p.ContinuousUsage && p.IncludeUsage
}

func (p *reader) streamInterval(raw []byte) {
	n, err := pydantic.Int("stream_interval", raw)
	if err == nil && n < 1 {
		err = pydantic.Invalid("stream_interval", "Input should be greater than or equal to 1")
	}
	p.Add(err)
	p.StreamInterval = n
}

// structuredOutputs knows the structure json.
func (p *reader) structuredOutputs(raw []byte) {
	members := p.object("structured_outputs", raw)
	p.JSON = p.JSON || !pydantic.IsNull(members["json"]) || pydantic.Truthy(members["json_object"])
}

// membersOf returns the members of a JSON object, nil for anything else.
func membersOf(object []byte) map[string]json.RawMessage {
	members, _ := pydantic.Object("", object)
	return members
}

func (p *reader) responseFormat(raw []byte) {
	format := p.object("response_format", raw)
	kind := pydantic.Text(format["type"])
	p.JSON = p.JSON || kind == "json_object" || kind == "json_schema"
	if kind == "json_schema" && pydantic.IsNull(format["json_schema"]) {
		p.Add(pydantic.BadRequest("response_format", "When response_format type is 'json_schema', the 'json_schema' field must be provided."))
		return
	}
	p.Add(pydantic.OneOf("response_format.type", format["type"], "text", "json_object", "json_schema", "structural_tag"))
}

func (p *reader) logitBias(raw []byte) {
	for key, raw := range p.object("logit_bias", raw) {
		_, err := pydantic.Float("logit_bias."+key, raw)
		p.Add(err)
		if _, err := strconv.Atoi(key); err != nil {
			p.Add(pydantic.BadRequest("logit_bias", "logit_bias contains key(s) that cannot be converted to integer token IDs: ['%s']", key))
		}
	}
}

// xargs checks vllm_xargs, which holds strings, numbers and lists of them. It holds no
// object, so that kv_transfer_params cannot be smuggled in there.
func (p *reader) xargs(raw []byte) {
	for key, raw := range p.object("vllm_xargs", raw) {
		items := []json.RawMessage{raw}
		if raw[0] == '[' {
			items = p.list("", raw)
		}
		for _, item := range items {
			if strings.IndexByte("{[n", item[0]) >= 0 {
				p.Add(pydantic.Invalid("vllm_xargs."+key, "Input should be a valid string"))
			}
		}
	}
}

// The limits of vLLM's defaults.
const (
	maxLogprobs  = 20    // --max-logprobs
	maxSequences = 16384 // VLLM_MAX_N_SEQUENCES
)

// Verify makes the checks of vLLM's SamplingParams that do not need the length of the prompt.
func (p *Request) Verify() error {
	infinite := func(f float64) bool { return math.IsNaN(f) || math.IsInf(f, 0) }
	within := func(f, low, high float64) bool { return f >= low && f <= high }
	tooMany := func(n *int) bool { return n != nil && *n > maxLogprobs }
	for _, c := range []struct {
		bad        bool
		param, msg string
		got        any
	}{
		{p.N < 1, "", "n must be at least 1, got %v.", p.N},
		{p.N > maxSequences, "", "n must be at most 16384, got %v. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.", p.N},
		{!within(p.presencePenalty, -2, 2), "", "presence_penalty must be in [-2, 2], got %v.", p.presencePenalty},
		{!within(p.frequencyPenalty, -2, 2), "", "frequency_penalty must be in [-2, 2], got %v.", p.frequencyPenalty},
		{infinite(p.repetitionPenalty), "", "repetition_penalty must be a finite number, got %v.", p.repetitionPenalty},
		{p.repetitionPenalty <= 0, "", "repetition_penalty must be greater than zero, got %v.", p.repetitionPenalty},
		{infinite(p.temperature), "temperature", "temperature must be a finite number, got %v.", p.temperature},
		{p.temperature < 0, "temperature", "temperature must be non-negative, got %v.", p.temperature},
		{p.temperature > 2, "temperature", "temperature must be in [0, 2], got %v.", p.temperature},
		{!(p.topP > 0 && p.topP <= 1), "top_p", "top_p must be in (0, 1], got %v.", p.topP},
		{p.topK < -1, "", "top_k must be 0 (disable), or at least 1, got %v.", p.topK},
		{!within(p.minP, 0, 1), "", "min_p must be in [0, 1], got %v.", p.minP},
		{tooMany(p.Logprobs), "logprobs", "Requested more sample logprobs than max allowed: %v", maxLogprobs},
		{tooMany(p.PromptLogprobs), "prompt_logprobs", "Requested more prompt logprobs than max allowed: %v", maxLogprobs},
		{slices.Contains(p.Sampling.Stop, ""), "", "stop cannot contain an empty string: %q", p.Sampling.Stop},
		{p.temperature < 1e-5 && p.N > 1 && !p.BeamSearch, "", "n must be 1 when using greedy sampling, got %v.", p.N},
	} {
		if c.bad {
			return pydantic.BadRequest(c.param, c.msg, c.got)
		}
	}
	return nil
}

// Restarts reports whether the answer depends on where the prompt ends, so that a continuation from
// ids differs: penalties of the output, and a seed.
func (p *Request) Restarts() bool {
	return p.presencePenalty != 0 || p.frequencyPenalty != 0 || p.seed != nil && p.temperature > 0 && p.topK != 1
}

// asked returns the limit of output tokens in the request, nil for none, its name, and its value.
func (p *Request) asked() (limit *int, name string, output int) {
	limit, name = p.MaxTokens, "max_tokens"
	if p.Chat && p.MaxCompletionTokens != nil {
		limit, name = p.MaxCompletionTokens, "max_completion_tokens"
	}
	if limit != nil {
		output = *limit
	} else if !p.Chat {
		output = 16
	}
	return limit, name, output
}

// Limit returns max_tokens for a prompt of promptLen tokens, derived as vLLM does, and checks
// what depends on it. echoOnly is completions' max_tokens 0 with echo: the prompt comes back
// and nothing is generated.
func (p *Request) Limit(promptLen, maxModelLen int) (maxTokens int, echoOnly bool, err error) {
	asked, name, output := p.asked()
	maxTokens = maxModelLen - promptLen
	if asked != nil || !p.Chat {
		maxTokens = min(maxTokens, output)
	}
	least := p.Sampling.MinTokens
	switch {
	case output > maxModelLen:
		err = pydantic.BadRequest(name, "%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", name, output, maxModelLen)
	case promptLen > maxModelLen:
		qualifier := ""
		if promptLen == maxModelLen+1 {
			qualifier = "at least " // the tokenizer truncates a text there
		}
		err = pydantic.BadRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %s%d input tokens, "+
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
			maxModelLen, qualifier, promptLen)
	case !p.Chat && p.Echo && maxTokens == 0:
		return 1, true, nil
	case maxTokens < 1:
		err = pydantic.BadRequest("max_tokens", "max_tokens must be at least 1, got %d.", maxTokens)
	case least < 0:
		err = pydantic.BadRequest("", "min_tokens must be greater than or equal to 0, got %d.", least)
	case least > maxTokens:
		err = pydantic.BadRequest("", "min_tokens must be less than or equal to max_tokens=%d, got %d.", maxTokens, least)
	}
	return maxTokens, false, err
}
