package request

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// reader is a request that is being read.
type reader struct {
	Request
	raw       map[string][]byte // members of the body; of duplicates the last
	into      map[string]any    // what a member is converted into, or a func([]byte) error that reads it
	required  []string          // members that cannot be null
	bad       pydantic.First
	answering bool // the last message is part of an answer
}

func newReader(chat bool) *reader {
	p := &reader{Request: Request{Chat: chat, N: 1, AddGenerate: chat, temperature: 1, topP: 1, repetitionPenalty: 1}, raw: map[string][]byte{}}
	p.into = map[string]any{
		"model": &p.Model, "stream": &p.Stream, "stream_options": p.streamOptions, "kv_transfer_params": &p.KV, "request_id": &p.RequestID,
		"return_token_ids": &p.ReturnTokenIDs, "priority": &p.Priority, "max_tokens": &p.MaxTokens, "n": &p.N, "seed": &p.seed,
		"min_tokens": &p.Sampling.MinTokens, "ignore_eos": &p.Sampling.IgnoreEOS, "stop": p.stop, "stop_token_ids": &p.Sampling.StopTokenIDs,
		"prompt_logprobs": &p.PromptLogprobs, "temperature": &p.temperature, "top_p": &p.topP, "top_k": &p.topK,
		"vllm_xargs": checkXArgs, "cache_salt": p.cacheSalt,
	}
	p.required = []string{"request_id", "priority", "ignore_eos", "min_tokens"}
	if !chat {
		p.required = append(p.required, "n")
	}
	return p
}

// only keeps the members of these names, and adds more.
func (p *reader) only(names []string, more map[string]any) {
	maps.DeleteFunc(p.into, func(name string, _ any) bool { return !slices.Contains(names, name) })
	maps.Copy(p.into, more)
}

// members reads the members of a body. That of the name large is validated where it is read.
func (p *reader) members(body []byte, large string) error {
	return pydantic.ForEachMember(body, func(key string, raw []byte) error {
		p.raw[key] = raw
		if key == large {
			return nil
		}
		if err := pydantic.Validate(raw); err != nil {
			return err
		}
		return p.bad.Add(p.member(key, raw))
	})
}

// member reads one member. vLLM allows unknown ones; null is the same as absent and takes back
// an earlier duplicate.
func (p *reader) member(key string, raw []byte) error {
	into, ok := p.into[key]
	null := pydantic.IsNull(raw)
	switch {
	case !ok:
		return nil
	case null && slices.Contains(p.required, key):
		return pydantic.Invalid(key, "Input should not be null")
	}
	if read, ok := into.(func([]byte) error); ok {
		if null {
			return nil
		}
		return read(raw)
	}
	err := pydantic.Into(into, key, raw)
	if null {
		switch key {
		case "n":
			p.N = 1
		case "temperature":
			p.temperature = 1
		case "top_p":
			p.topP = 1
		}
	}
	return err
}

// require notes which of these members are absent.
func (p *reader) require(names ...string) {
	for _, name := range names {
		if p.raw[name] == nil {
			_ = p.bad.Add(pydantic.Missing(name)) // which is always kept
		}
	}
}

func readCompletion(body []byte) (*reader, error) {
	p := newReader(false)
	maps.Copy(p.into, map[string]any{"logprobs": &p.Logprobs, "echo": &p.Echo})
	return p, p.completion(body, "prompt", func() error { return p.parsePrompt() })
}

func readChat(body []byte) (*reader, error) {
	p := newReader(true)
	maps.Copy(p.into, map[string]any{
		"logprobs": new(bool), "top_logprobs": new(int), "max_completion_tokens": &p.MaxCompletionTokens, "echo": &p.Echo,
		"add_generation_prompt": &p.AddGenerate, "continue_final_message": &p.ContinueMsg,
	})
	p.required = append(p.required, "echo", "add_generation_prompt", "continue_final_message")
	return p, p.completion(body, "messages", func() error { return p.parseMessages(p.raw["messages"]) })
}

// completion reads a body of one of the two completion routes.
func (p *reader) completion(body []byte, large string, parse func() error) error {
	check := func(convert func(string, []byte) error, names ...string) {
		for _, name := range names {
			p.into[name] = func(raw []byte) error { return convert(name, raw) }
		}
	}
	reasoning, parallel := true, true
	maps.Copy(p.into, map[string]any{
		"use_beam_search": &p.BeamSearch, "include_stop_str_in_output": &p.Sampling.IncludeStop, "truncate_prompt_tokens": &p.truncate,
		"min_p": &p.minP, "presence_penalty": &p.presencePenalty, "frequency_penalty": &p.frequencyPenalty,
		"repetition_penalty": &p.repetitionPenalty, "length_penalty": new(float64), "allowed_token_ids": new([]int), "bad_words": new([]string),
		"logit_bias": checkLogitBias, "stream_interval": p.streamInterval, "structured_outputs": p.structuredOutputs,
		"include_reasoning": &reasoning, "parallel_tool_calls": &parallel,
	})
	for _, name := range []string{"skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "return_tokens_as_token_ids"} {
		p.into[name] = new(bool)
	}
	for _, name := range []string{"user", "suffix", "session_id", "chat_template"} {
		p.into[name] = new(string)
	}
	check(pydantic.Object, "ec_transfer_params", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs")
	check(func(name string, raw []byte) error { _, err := pydantic.RawList(name, raw); return err }, "documents")
	check(func(name string, raw []byte) error {
		return pydantic.OneOf(name, raw, "none", "minimal", "low", "medium", "high", "xhigh", "max")
	}, "reasoning_effort")
	p.required = append(p.required, "use_beam_search", "length_penalty", "include_stop_str_in_output", "skip_special_tokens",
		"spaces_between_special_tokens", "add_special_tokens", "bad_words")
	if err := p.members(body, large); err != nil {
		return err
	}
	p.HideReasoning, p.OneCall = !reasoning, !parallel
	if err := p.checkRaw(); err != nil {
		return err
	}
	others := p.bad
	p.bad = pydantic.First{} // the error of the first field comes first
	if err := p.bad.Add(parse()); err != nil {
		return err
	}
	if p.truncate != nil && *p.truncate < -1 {
		_ = p.bad.Add(pydantic.Invalid("truncate_prompt_tokens", "Input should be greater than or equal to -1")) // always kept
	}
	for _, bad := range []pydantic.First{p.bad, others} {
		if err := bad.Err(); err != nil {
			return err
		}
	}
	return p.parseTools()
}

// checkRaw makes vLLM's checks of the raw body, before types are converted: there "false" is a
// true value and {} a false one.
func (p *reader) checkRaw() error {
	raw := func(name string) []byte { return p.raw[name] }
	if pydantic.Truthy(raw("stream_options")) && !pydantic.Truthy(raw("stream")) {
		return pydantic.BadRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	}
	if err := checkResponseFormat(raw("response_format")); err != nil {
		return err
	}
	if format := raw("response_format"); !pydantic.IsNull(format) {
		kind := string(membersOf(format)["type"])
		p.JSON = p.JSON || kind == `"json_object"` || kind == `"json_schema"`
	}
	if err := p.checkLogprobs(); err != nil {
		return err
	}
	if p.Chat {
		if pydantic.Truthy(raw("continue_final_message")) && pydantic.Truthy(raw("add_generation_prompt")) {
			return pydantic.BadRequest("", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
		}
		return nil
	}
	embeds := !pydantic.IsNull(raw("prompt_embeds")) && string(raw("prompt_embeds")) != "[]"
	switch {
	case embeds:
		return pydantic.BadRequest("prompt_embeds", "You must set `--enable-prompt-embeds` to input `prompt_embeds`.")
	case pydantic.IsNull(raw("prompt")) || string(raw("prompt")) == `""`:
		return pydantic.BadRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case !pydantic.IsNull(raw("suffix")):
		return &pydantic.Error{Status: http.StatusBadRequest, Kind: "BadRequestError", Param: "suffix",
			Message: "suffix is only supported for models with FIM completion rendering"}
	}
	return nil
}

// checkLogprobs checks the numbers of logprobs: "logprobs" of completions, and "top_logprobs"
// of chats, which "logprobs" allows.
func (p *reader) checkLogprobs() error {
	name := "logprobs"
	if p.Chat {
		name = "top_logprobs"
	}
	for _, name := range []string{"prompt_logprobs", name} {
		raw := p.raw[name]
		if pydantic.IsNull(raw) {
			continue
		}
		if strings.IndexByte(`"[{`, raw[0]) >= 0 {
			return pydantic.BadRequest(name, "`%s` must be an integer.", name)
		}
		f, err := pydantic.Float(name, raw)
		switch {
		case err != nil:
			return err
		case name == "prompt_logprobs" && pydantic.Truthy(p.raw["stream"]) && (f > 0 || f == -1):
			return pydantic.BadRequest(name, "`prompt_logprobs` are not available when `stream=True`.")
		case f < 0 && f != -1:
			return pydantic.BadRequest(name, "`%s` must be a positive value or -1.", name)
		case name == "top_logprobs" && f != 0 && !pydantic.Truthy(p.raw["logprobs"]):
			return pydantic.BadRequest(name, "when using `top_logprobs`, `logprobs` must be set to true.")
		}
	}
	if p.Chat && pydantic.Truthy(p.raw["logprobs"]) {
		top := 0.0
		if raw := p.raw["top_logprobs"]; !pydantic.IsNull(raw) {
			top, _ = pydantic.Float("", raw) // it was checked
		}
		n := int(top)
		p.Logprobs = &n
	}
	return nil
}

func (p *reader) stop(raw []byte) (err error) {
	if raw[0] == '"' {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	if p.Sampling.Stop, err = pydantic.Strings("stop", raw); err != nil {
		return pydantic.Invalid("stop", "Input should be a valid string or list of strings")
	}
	return nil
}

func (p *reader) cacheSalt(raw []byte) (err error) {
	if raw[0] != '"' || len(raw) == 2 {
		return pydantic.BadRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	if p.CacheSalt, err = pydantic.Unquote(raw); err == nil && (len(p.CacheSalt) > 128 || strings.ContainsAny(p.CacheSalt, "@/\\\x00")) {
		err = pydantic.BadRequest("cache_salt", "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.")
	}
	return err
}

func (p *reader) streamOptions(raw []byte) error {
	p.HasStreamOptions = true
	p.IncludeUsage, p.ContinuousUsage = false, false
	if err := pydantic.Object("stream_options", raw); err != nil {
		return err
	}
	err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		if into := map[string]*bool{"include_usage": &p.IncludeUsage, "continuous_usage_stats": &p.ContinuousUsage}[key]; into != nil {
			return pydantic.Into(into, "stream_options."+key, raw)
		}
		return nil
	})
	p.ContinuousUsage = p.ContinuousUsage && p.IncludeUsage
	return err
}

func (p *reader) streamInterval(raw []byte) error {
	n, err := pydantic.Int("stream_interval", raw)
	if err == nil && n < 1 {
		err = pydantic.Invalid("stream_interval", "Input should be greater than or equal to 1")
	}
	p.StreamInterval = &n
	return err
}

// structuredOutputs knows the structure json.
func (p *reader) structuredOutputs(raw []byte) error {
	if err := pydantic.Object("structured_outputs", raw); err != nil {
		return err
	}
	members := membersOf(raw)
	p.JSON = p.JSON || !pydantic.IsNull(members["json"]) || pydantic.Truthy(members["json_object"])
	return nil
}

// membersOf returns the members of a JSON object that was read before.
func membersOf(object []byte) map[string][]byte {
	members, _ := pydantic.Members(object)
	return members
}

func checkResponseFormat(raw []byte) error {
	if pydantic.IsNull(raw) {
		return nil
	}
	if err := pydantic.Object("response_format", raw); err != nil {
		return err
	}
	format := membersOf(raw)
	switch kind := format["type"]; {
	case kind == nil:
		return pydantic.Missing("response_format.type")
	case string(kind) == `"json_schema"` && pydantic.IsNull(format["json_schema"]):
		return pydantic.BadRequest("response_format", "When response_format type is 'json_schema', the 'json_schema' field must be provided.")
	default:
		return pydantic.OneOf("response_format.type", kind, "text", "json_object", "json_schema", "structural_tag")
	}
}

func checkLogitBias(raw []byte) error {
	if err := pydantic.Object("logit_bias", raw); err != nil {
		return err
	}
	return pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		if _, err := pydantic.Float("logit_bias."+key, raw); err != nil {
			return err
		}
		if _, err := strconv.Atoi(key); err != nil {
			return pydantic.BadRequest("logit_bias", "logit_bias contains key(s) that cannot be converted to integer token IDs: ['%s']", key)
		}
		return nil
	})
}

// checkXArgs checks vllm_xargs, which holds strings, numbers and lists of them. It holds no
// object, so that kv_transfer_params cannot be smuggled in there.
func checkXArgs(raw []byte) error {
	if err := pydantic.Object("vllm_xargs", raw); err != nil {
		return err
	}
	return pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		loc := "vllm_xargs." + key
		if raw[0] == '{' || raw[0] == 'n' {
			return pydantic.Invalid(loc, "Input should be a valid string")
		}
		if raw[0] != '[' {
			return nil
		}
		return pydantic.ForEachElement(raw, func(i int, raw []byte) error {
			if raw[0] == '{' || raw[0] == '[' || raw[0] == 'n' {
				return pydantic.Invalid(fmt.Sprintf("%s.%d", loc, i), "Input should be a valid string")
			}
			return nil
		})
	})
}
