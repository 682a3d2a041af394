package request

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The limits of vLLM's defaults.
const (
	maxLogprobs   = 20    // --max-logprobs
	maxSequences  = 16384 // VLLM_MAX_N_SEQUENCES
	maxCacheSalt  = 128
	unboundedTopK = -1
)

// checkRaw holds vLLM's checks that run on the raw body, before types are
// converted: there "false" is a true value and {} a false one.
func (p *reader) checkRaw() error {
	r := &p.raw
	if pydantic.Truthy(r.streamOptions) && !pydantic.Truthy(r.stream) {
		return pydantic.BadRequest("stream_options", nil, "Stream options can only be defined when `stream=True`.")
	}
	if err := checkResponseFormat(r.responseFormat); err != nil {
		return err
	}
	if err := p.checkLogprobs(); err != nil {
		return err
	}
	if p.Chat {
		if pydantic.Truthy(r.continueMsg) && pydantic.Truthy(r.addGenerate) {
			return pydantic.BadRequest("", nil, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
		}
		return nil
	}
	empty := pydantic.IsNull(r.prompt) || string(r.prompt) == `""`
	noEmbeds := pydantic.IsNull(r.embeds) || string(r.embeds) == "[]"
	if empty && noEmbeds {
		return pydantic.BadRequest("prompt", nil, "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	if !noEmbeds {
		return pydantic.BadRequest("prompt_embeds", nil, "You must set `--enable-prompt-embeds` to input `prompt_embeds`.")
	}
	if !pydantic.IsNull(r.suffix) {
		return &pydantic.Error{Status: http.StatusBadRequest, Kind: "BadRequestError", Param: "suffix",
			Message: "suffix is only supported for models with FIM completion rendering"}
	}
	return nil
}

// checkLogprobs: the number of logprobs is in "logprobs" for completions
// and in "top_logprobs", allowed by "logprobs", for chat.
func (p *reader) checkLogprobs() error {
	number := func(name string, raw []byte) (float64, bool, error) {
		if pydantic.IsNull(raw) {
			return 0, false, nil
		}
		if raw[0] == '"' || raw[0] == '[' || raw[0] == '{' {
			return 0, false, pydantic.BadRequest(name, pydantic.Describe(raw), "`%s` must be an integer.", name)
		}
		f, err := pydantic.Float(name, raw)
		return f, err == nil, err
	}
	f, ok, err := number("prompt_logprobs", p.raw.promptLogprobs)
	switch {
	case err != nil:
		return err
	case ok && pydantic.Truthy(p.raw.stream) && (f > 0 || f == -1):
		return pydantic.BadRequest("prompt_logprobs", nil, "`prompt_logprobs` are not available when `stream=True`.")
	case ok && f < 0 && f != -1:
		return pydantic.BadRequest("prompt_logprobs", f, "`prompt_logprobs` must be a positive value or -1.")
	}
	name, raw := "logprobs", p.raw.logprobs
	if p.Chat {
		name, raw = "top_logprobs", p.raw.topLogprobs
	}
	f, ok, err = number(name, raw)
	switch {
	case err != nil:
		return err
	case ok && f < 0 && f != -1:
		return pydantic.BadRequest(name, f, "`%s` must be a positive value or -1.", name)
	case p.Chat && ok && f != 0 && !pydantic.Truthy(p.raw.logprobs):
		return pydantic.BadRequest(name, nil, "when using `top_logprobs`, `logprobs` must be set to true.")
	}
	if p.Chat && pydantic.Truthy(p.raw.logprobs) {
		top := int(f)
		p.Logprobs = &top
	}
	return nil
}

// Verify holds the checks of vLLM's SamplingParams that don't need the length
// of the prompt.
func (p *Request) Verify() error {
	s := &p.Sampling
	switch {
	case p.N < 1:
		return pydantic.BadRequest("", nil, "n must be at least 1, got %d.", p.N)
	case p.N > maxSequences:
		return pydantic.BadRequest("", nil, "n must be at most %d, got %d. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.", maxSequences, p.N)
	case !(p.presencePenalty >= -2 && p.presencePenalty <= 2):
		return pydantic.BadRequest("", nil, "presence_penalty must be in [-2, 2], got %s.", pydantic.PyFloat(p.presencePenalty))
	case !(p.frequencyPenalty >= -2 && p.frequencyPenalty <= 2):
		return pydantic.BadRequest("", nil, "frequency_penalty must be in [-2, 2], got %s.", pydantic.PyFloat(p.frequencyPenalty))
	case math.IsNaN(p.repetitionPenalty) || math.IsInf(p.repetitionPenalty, 0):
		return pydantic.BadRequest("", nil, "repetition_penalty must be a finite number, got %s.", pydantic.PyFloat(p.repetitionPenalty))
	case p.repetitionPenalty <= 0:
		return pydantic.BadRequest("", nil, "repetition_penalty must be greater than zero, got %s.", pydantic.PyFloat(p.repetitionPenalty))
	case math.IsNaN(p.temperature) || math.IsInf(p.temperature, 0):
		return pydantic.BadRequest("temperature", pydantic.PyFloat(p.temperature), "temperature must be a finite number, got %s.", pydantic.PyFloat(p.temperature))
	case p.temperature < 0:
		return pydantic.BadRequest("temperature", pydantic.PyFloat(p.temperature), "temperature must be non-negative, got %s.", pydantic.PyFloat(p.temperature))
	case p.temperature > 2:
		return pydantic.BadRequest("temperature", pydantic.PyFloat(p.temperature), "temperature must be in [0, 2], got %s.", pydantic.PyFloat(p.temperature))
	case !(p.topP > 0 && p.topP <= 1):
		return pydantic.BadRequest("top_p", pydantic.PyFloat(p.topP), "top_p must be in (0, 1], got %s.", pydantic.PyFloat(p.topP))
	case p.topK < unboundedTopK:
		return pydantic.BadRequest("", nil, "top_k must be 0 (disable), or at least 1, got %d.", p.topK)
	case !(p.minP >= 0 && p.minP <= 1):
		return pydantic.BadRequest("", nil, "min_p must be in [0, 1], got %s.", pydantic.PyFloat(p.minP))
	case p.Logprobs != nil && *p.Logprobs > maxLogprobs:
		return pydantic.BadRequest("logprobs", *p.Logprobs, "Requested sample logprobs of %d, which is greater than max allowed: %d", *p.Logprobs, maxLogprobs)
	case p.PromptLogprobs != nil && *p.PromptLogprobs > maxLogprobs:
		return pydantic.BadRequest("prompt_logprobs", *p.PromptLogprobs, "Requested prompt logprobs of %d, which is greater than max allowed: %d", *p.PromptLogprobs, maxLogprobs)
	}
	if slices.Contains(s.Stop, "") {
		return pydantic.BadRequest("", nil, "stop cannot contain an empty string.")
	}
	if p.temperature < 1e-5 && p.N > 1 && !p.BeamSearch {
		return pydantic.BadRequest("", nil, "n must be 1 when using greedy sampling, got %d.", p.N)
	}
	return nil
}

// Limit sets MaxTokens for a prompt of promptLen tokens, the way vLLM derives
// it, and checks what depends on it. echoOnly is completions' max_tokens 0
// with echo: the prompt comes back and nothing is generated.
func (p *Request) Limit(promptLen, maxModelLen int) (maxTokens int, echoOnly bool, err error) {
	asked, name := p.MaxTokens, "max_tokens"
	if p.Chat && p.MaxCompletionTokens != nil {
		asked, name = p.MaxCompletionTokens, "max_completion_tokens"
	}
	if !p.Chat && asked == nil {
		sixteen := 16
		asked = &sixteen
	}
	output := 0
	if asked != nil {
		output = *asked
	}
	if output > maxModelLen {
		return 0, false, pydantic.BadRequest(name, output,
			"%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", name, output, maxModelLen)
	}
	if room := maxModelLen - output; promptLen > room {
		return 0, false, pydantic.BadRequest("input_tokens", promptLen,
			"You passed %d input tokens and requested %d output tokens. However, the model's context length is only %d tokens, "+
				"resulting in a maximum input length of %d tokens. Please reduce the length of the input prompt.",
			promptLen, output, maxModelLen, room)
	}
	maxTokens = maxModelLen - promptLen
	if asked != nil {
		maxTokens = min(maxTokens, *asked)
	}
	if !p.Chat && p.Echo && maxTokens == 0 {
		return 1, true, nil
	}
	if maxTokens < 1 {
		return 0, false, pydantic.BadRequest("max_tokens", maxTokens, "max_tokens must be at least 1, got %d.", maxTokens)
	}
	if p.Sampling.MinTokens < 0 {
		return 0, false, pydantic.BadRequest("", nil, "min_tokens must be greater than or equal to 0, got %d.", p.Sampling.MinTokens)
	}
	if p.Sampling.MinTokens > maxTokens {
		return 0, false, pydantic.BadRequest("", nil, "min_tokens must be less than or equal to max_tokens=%d, got %d.", maxTokens, p.Sampling.MinTokens)
	}
	return maxTokens, false, nil
}

func checkResponseFormat(raw []byte) error {
	if pydantic.IsNull(raw) {
		return nil
	}
	if raw[0] != '{' {
		return pydantic.Invalid("model_attributes_type", "response_format", raw, "Input should be a valid dictionary or object to extract fields from")
	}
	var kind, schema []byte
	if err := pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		switch key {
		case "type":
			kind = raw
		case "json_schema":
			schema = raw
		}
		return nil
	}); err != nil {
		return err
	}
	if kind == nil {
		return pydantic.Invalid("missing", "response_format.type", raw, "Field required")
	}
	if string(kind) == `"json_schema"` && pydantic.IsNull(schema) {
		return pydantic.BadRequest("response_format", nil, "When response_format type is 'json_schema', the 'json_schema' field must be provided.")
	}
	return oneOf("response_format.type", kind, "text", "json_object", "json_schema", "structural_tag")
}

func checkLogitBias(raw []byte) error {
	if err := pydantic.CheckObject("logit_bias", raw); err != nil {
		return err
	}
	return pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		if _, err := pydantic.Float("logit_bias."+key, raw); err != nil {
			return err
		}
		if _, err := strconv.Atoi(key); err != nil {
			return pydantic.BadRequest("logit_bias", "['"+key+"']", "logit_bias contains key(s) that cannot be converted to integer token IDs: ['%s']", key)
		}
		return nil
	})
}

// checkXArgs: vllm_xargs holds strings, numbers and lists of them; above all
// no object, so kv_transfer_params cannot be smuggled in there.
func checkXArgs(raw []byte) error {
	if err := pydantic.CheckObject("vllm_xargs", raw); err != nil {
		return err
	}
	return pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		if raw[0] == '{' || raw[0] == 'n' {
			loc, input := pydantic.BodyLoc("vllm_xargs."+key), pydantic.Describe(raw)
			return pydantic.Complaints(
				pydantic.Problem{Kind: "string_type", Loc: loc, Msg: "Input should be a valid string", Input: input},
				pydantic.Problem{Kind: "int_type", Loc: loc, Msg: "Input should be a valid integer", Input: input},
				pydantic.Problem{Kind: "float_type", Loc: loc, Msg: "Input should be a valid number", Input: input},
				pydantic.Problem{Kind: "list_type", Loc: loc, Msg: "Input should be a valid list", Input: input})
		}
		if raw[0] == '[' {
			return pydantic.ForEachElement(raw, func(i int, raw []byte) error {
				if raw[0] == '{' || raw[0] == '[' || raw[0] == 'n' {
					return pydantic.Invalid("string_type", fmt.Sprintf("vllm_xargs.%s.%d", key, i), raw, "Input should be a valid string")
				}
				return nil
			})
		}
		return nil
	})
}

func checkCacheSalt(raw []byte) error {
	if raw[0] != '"' || len(raw) == 2 {
		return pydantic.BadRequest("cache_salt", nil, "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	s, err := pydantic.Unquote(raw)
	if err != nil {
		return err
	}
	if len(s) > maxCacheSalt || strings.ContainsAny(s, "@/\\\x00") {
		return pydantic.BadRequest("cache_salt", nil, "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.")
	}
	return nil
}
