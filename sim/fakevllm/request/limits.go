package request

import (
	"math"
	"slices"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

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

// Limit returns max_tokens for a prompt of promptLen tokens, derived as vLLM does, and checks
// what depends on it. echoOnly is completions' max_tokens 0 with echo: the prompt comes back
// and nothing is generated.
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
	maxTokens = maxModelLen - promptLen
	if asked != nil {
		maxTokens = min(maxTokens, *asked)
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
