package response

import (
	"strconv"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// setMessageUsage is SetCachedTokens for /v1/messages, where the prompt is the sum of the
// tokens read from the cache, written to it, and neither (input_tokens). The sum stays that
// of decode, its parts become those of prefill. usage is the position of the usage's brace.
func setMessageUsage(answer []byte, usage int, c Cached) []byte {
	names := namesOf(openai.Messages)
	input, ok1 := count(answer, usage, "input_tokens")
	read, ok2 := count(answer, usage, names.tokens)
	nowRead, err := strconv.ParseInt(c.Tokens, 10, 64)
	if !ok1 || !ok2 || err != nil {
		return answer
	}
	created, has := count(answer, usage, names.created)
	sum, nowCreated := input+read+created, created
	if n, err := strconv.ParseInt(c.Created, 10, 64); has && err == nil {
		nowCreated = n
	}
	answer = setCount(answer, usage, "input_tokens", max(0, sum-nowRead-nowCreated))
	answer = setCount(answer, usage, names.tokens, nowRead)
	if has {
		answer = setCount(answer, usage, names.created, nowCreated)
	}
	return answer
}

// count reads a member of the object at open that is digits.
func count(b []byte, open int, name string) (n int64, ok bool) {
	return number(jsonscan.Value(b, open, name))
}

// number reads a value that is digits.
func number(value []byte) (n int64, ok bool) {
	u, err := strconv.ParseUint(string(value), 10, 63)
	return int64(u), err == nil
}

// setCount replaces a member of the object at open that count has read.
func setCount(b []byte, open int, name string, n int64) []byte {
	m, _ := jsonscan.Find(b, open, name)
	return jsonscan.Replaced(b, m.Value, m.End, strconv.AppendInt(nil, n, 10))
}
