package response

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Cached is the prefix cache part of a response's usage, unchanged. The zero value
// means that there is no usage.
type Cached struct {
	// Tokens is the number of tokens of the prompt from the cache: digits or null.
	Tokens string
	// Created is the number of tokens that were put into it, digits; "" if not reported.
	Created string
	// Prompt is the number of tokens of the prompt; 0 if not reported.
	Prompt int
}

// cacheNames are the names of an API for the numbers of Cached and for the member of usage
// that holds them, "" if they are in usage itself.
type cacheNames struct{ details, tokens, created string }

func namesOf(k openai.Kind) cacheNames {
	switch k {
	case openai.Responses:
		return cacheNames{"input_tokens_details", "cached_tokens", "cache_write_tokens"}
	case openai.Messages:
		return cacheNames{"", "cache_read_input_tokens", "cache_creation_input_tokens"}
	case openai.Completion, openai.Chat, openai.Other:
	}
	return cacheNames{"prompt_tokens_details", "cached_tokens", "created_cache_tokens"}
}

// CachedTokens returns what an answer reports about the prefix cache. Tokens is "" if there
// is no usage, "0" if the usage does not mention it. A null stays a null. Any other value
// that is not a number counts as no usage, since it is put into the client's answer.
func CachedTokens(k openai.Kind, answer []byte) Cached {
	usage, ok := usageIn(k, answer, 0)
	if !ok {
		return Cached{}
	}
	names := namesOf(k)
	c := Cached{Tokens: "0", Prompt: promptTokens(k, answer, usage)}
	m, ok := names.find(answer, usage, names.tokens)
	if !ok {
		return c
	}
	value := answer[m.Value:m.End]
	if jsonscan.Digits(value, 0) < len(value) && !jsonscan.IsNull(value) {
		return Cached{}
	}
	c.Tokens = string(value)
	if m, ok := names.find(answer, usage, names.created); ok && jsonscan.Digits(answer[m.Value:m.End], 0) == m.End-m.Value {
		c.Created = string(answer[m.Value:m.End])
	}
	return c
}

// promptTokens returns the length of the prompt in a usage. /v1/messages counts tokens read
// from the cache, and tokens written to it, separately.
func promptTokens(k openai.Kind, answer []byte, usage int) (tokens int) {
	for _, name := range promptNames(k) {
		if n, ok := count(answer, usage, name); ok && n == int64(bounded(n)) { // no engine has a larger one
			tokens += int(n)
		}
	}
	return tokens
}

func promptNames(k openai.Kind) []string {
	switch k {
	case openai.Responses:
		return []string{"input_tokens"}
	case openai.Messages:
		return []string{"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}
	case openai.Completion, openai.Chat, openai.Generate, openai.Other:
	}
	return []string{"prompt_tokens"}
}

// SetCachedTokens replaces the numbers about the prefix cache in an answer, or in the data of an event. A
// decode instance does not compute the prompt, so vLLM counts the whole prompt as cached there, and nothing
// as written to the cache. The numbers of the prefill instance are correct. (llm-d's sidecar, vllm-ascend's
// proxy and vllm-router replace them too.) If there is nothing to replace, the result is the same bytes.
func SetCachedTokens(k openai.Kind, answer []byte, c Cached) []byte {
	start := bytes.IndexByte(answer, '{') // after "data: " in an event
	if start < 0 {
		return answer
	}
	usage, ok := usageIn(k, answer, start)
	if !ok {
		return answer
	}
	if k == openai.Messages {
		return setMessageUsage(answer, usage, c)
	}
	names := namesOf(k)
	answer = names.set(answer, usage, names.tokens, c.Tokens)
	if c.Created != "" {
		answer = names.set(answer, usage, names.created, c.Created)
	}
	return answer
}

// set replaces one of the numbers of a usage that begins at usage, if it is there and not null.
func (n cacheNames) set(answer []byte, usage int, name, value string) []byte {
	m, ok := n.find(answer, usage, name)
	if !ok || jsonscan.IsNull(answer[m.Value:m.End]) {
		return answer
	}
	return jsonscan.Replaced(answer, m.Value, m.End, []byte(value))
}

// usageIn returns the position of the usage of an answer, or of an event's data, that begins at
// open. Some events of /v1/responses and /v1/messages have it inside the answer that they carry.
func usageIn(k openai.Kind, b []byte, open int) (at int, ok bool) {
	m, ok := jsonscan.Find(b, open, "usage")
	switch {
	case ok:
	case k == openai.Responses:
		m, ok = jsonscan.Find(b, open, "response", "usage")
	case k == openai.Messages:
		m, ok = jsonscan.Find(b, open, "message", "usage")
	}
	return m.Value, ok && b[m.Value] == '{'
}

// find returns one of the numbers of a usage that begins at usage.
func (n cacheNames) find(b []byte, usage int, name string) (jsonscan.Member, bool) {
	if n.details == "" {
		return jsonscan.Find(b, usage, name)
	}
	return jsonscan.Find(b, usage, n.details, name)
}

// HasCachedTokens is a fast check whether there may be something to replace.
func HasCachedTokens(k openai.Kind, b []byte) bool {
	if k == openai.Messages {
		return bytes.Contains(b, []byte("cache_read_input_tokens"))
	}
	// The underscore is rare in an event, the quote is not: a search for the whole name takes
	// five times as long.
	return bytes.Contains(b, []byte(`_tokens"`)) && bytes.Contains(b, []byte(`"cached_tokens"`))
}
